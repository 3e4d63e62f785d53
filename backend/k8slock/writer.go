package k8slock

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// change is a change of a lock. In this process, the changes of one lock are made one after the
// other, as many as possible with one write.
type change struct {
	ctx context.Context //nolint:containedctx // the caller's: a caller that has gone gets no more requests
	// apply makes the change in the record and keeps the outcome for its caller. It may be called
	// again, on a newer record. It returns true if it was refused because of entries before it,
	// whose sessions may be dead.
	apply func(*record) bool
	// creates is set if the object must be made where it does not exist.
	creates bool
	// pressing: a renewal waits for it. It goes before the changes that wait, and needs no slot.
	pressing bool
	// done is closed when the change was made, or err says why not.
	done chan struct{}
	err  error
	// sent is true if the request with the change may have worked. left is true if its caller was
	// told that it was not sent, so that it must not be sent any more. Backend.mu guards them.
	sent, left bool
}

// writer makes the changes of one lock. It lives while there are any, or a write is in doubt.
type writer struct {
	queue  []*change
	sent   int           // how many of the queue, from the first, are on their way
	more   chan struct{} // capacity 1: a change has come
	urgent chan struct{} // capacity 1: a pressing change has come
	// inDoubt: a write of ours may still be on its way. The version that it is based on must be
	// replaced. tries counts the attempts to do only that.
	inDoubt bool
	tries   int
}

// do makes a change and waits for it, until its context ends.
func (b *Backend) do(ctx context.Context, lock string, c *change) error {
	c.ctx, c.done = ctx, make(chan struct{})
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return backend.ErrClosed
	}
	w, ok := b.writers[lock]
	if !ok {
		w = &writer{more: make(chan struct{}, 1), urgent: make(chan struct{}, 1)}
		b.writers[lock] = w
		b.work.Go(func() { b.write(lock, w) })
	}
	if c.pressing {
		w.queue = slices.Insert(w.queue, w.sent, c)
		signal(w.urgent)
	} else {
		w.queue = append(w.queue, c)
	}
	signal(w.more)
	b.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	default:
	}
	if c.sent {
		return context.Cause(ctx)
	}
	c.left = true
	return &unsentError{context.Cause(ctx)}
}

// signal signals a channel of capacity 1.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it has been signalled
	}
}

// unsentError means that a caller's context, or patience, ended before anything was sent.
type unsentError struct{ cause error }

func (e *unsentError) Error() string { return e.cause.Error() }
func (e *unsentError) Unwrap() error { return e.cause }

// maxBatch bounds how many changes travel together: below perWrite, as each may grant.
const maxBatch = 256

// write makes changes until there are none, and nothing is in doubt. Each lock has one.
func (b *Backend) write(lock string, w *writer) {
	for b.isAsked(lock, w) {
		free, err := b.slot(b.base, w.urgent)
		b.mu.Lock()
		batch := w.batch() // with those that have come in the meantime
		w.sent = len(batch)
		select {
		case <-w.urgent: // the pressing change is in the batch
		default:
		}
		b.mu.Unlock()
		n := len(batch)
		if err == nil && n > 0 {
			n, err = b.writeBatch(lock, w, batch)
		}
		free()
		b.mu.Lock()
		for _, c := range batch[:n] {
			c.err = err
			close(c.done)
		}
		w.queue, w.sent = w.queue[n:], 0
		b.mu.Unlock()
	}
}

// isAsked waits while a write is in doubt. It reports whether there are changes to be made, and otherwise ends
// the writer. If no change comes, it makes one that writes the lock as it is, which replaces the version that
// the write in doubt is based on: otherwise each lost reply would leave a writer behind for as long as the
// process lives.
func (b *Backend) isAsked(lock string, w *writer) bool {
	const soonest, latest = 200 * time.Millisecond, 30 * time.Second
	for {
		b.mu.Lock()
		asked, doubt := len(w.batch()) > 0, w.inDoubt && !b.closed
		if !asked && !doubt {
			delete(b.writers, lock)
		}
		b.mu.Unlock()
		if asked || !doubt {
			return asked
		}
		timer := time.NewTimer(retry.Delay(w.tries, soonest, latest))
		select {
		case <-w.more:
		case <-b.base.Done():
		case <-timer.C:
			w.tries++
			b.mu.Lock()
			w.queue = append(w.queue, &change{
				ctx: b.base, apply: func(r *record) bool { r.touch = true; return false }, done: make(chan struct{}),
			})
			b.mu.Unlock()
		}
		timer.Stop()
	}
}

var errSilent = errors.New("the API server does not answer the earlier requests")

// slot waits until fewer than recordsAtOnce requests about locks are under way here, or until urgent
// signals that this one cannot wait. The caller must call the function that it returns when it is
// done. Errors: *unsentError if no answer has come for as long as a request may take; ctx's cause.
func (b *Backend) slot(ctx context.Context, urgent <-chan struct{}) (func(), error) {
	free := func() { <-b.slots }
	none := func() {}
	timer := time.NewTimer(attempt)
	defer timer.Stop()
	for {
		select {
		case b.slots <- struct{}{}:
			return free, nil
		case <-urgent:
			return none, nil
		case <-timer.C:
			if b.rest.clock.silence() >= attempt {
				return none, &unsentError{errSilent}
			}
			timer.Reset(attempt)
		case <-ctx.Done():
			return none, context.Cause(ctx)
		}
	}
}

// batch returns the next changes to be made, without those whose callers have gone. Backend.mu is
// held.
func (w *writer) batch() []*change {
	live := w.queue[:0:0]
	for _, c := range w.queue {
		if c.ctx.Err() == nil {
			live = append(live, c)
		}
	}
	w.queue = live
	return live[:min(len(live), maxBatch)]
}

// writeBatch makes the changes with one write, and repeats it where another client was faster. It returns
// how many of them, from the first, the result applies to.
func (b *Backend) writeBatch(lock string, w *writer, batch []*change) (int, error) {
	ctx, cancel := backend.WithTimeout(b.base, attempt)
	defer cancel()
	at := objectName(lock)
	var base *object
	if known := b.cache.known(at); known != nil {
		base = known.object
	}
	fresh, verified := false, false
	for conflicts := 0; ; {
		if base == nil {
			var err error
			if base, err = b.fetch(ctx, at, lock, creates(batch)); err != nil {
				return len(batch), err
			}
			fresh = true
		}
		r, here, refused, err := b.applyTo(ctx, lock, base, batch)
		if err != nil {
			return len(batch), err
		}
		switch {
		case (refused || !r.changed) && !fresh: // what no write confirms has to be read
			base = nil
			continue
		case refused && !verified:
			verified = true
			if live, err := b.allLive(ctx, r); err != nil {
				return len(batch), err
			} else if !live {
				continue
			}
		}
		if base.version() == 0 {
			w.sure(b) // there is no object: all conditional writes to it have failed or will
			return len(batch), nil
		}
		if !r.changed && (!r.touch || !w.inDoubt) {
			return len(batch), nil
		}
		o, err := r.seal(b.rest.clock.now(), b.foreign(r))
		if errors.Is(err, errFull) && len(batch) > 1 {
			batch = batch[:len(batch)/2]
			continue
		}
		if err != nil {
			return len(batch), err
		}
		doubt, ok := b.mark(here, w)
		if !ok {
			continue // a caller left
		}
		written, err := b.rest.update(ctx, o)
		if err == nil {
			w.sure(b)
			b.learn(written)
			return len(batch), nil
		}
		if !isStatus(err, http.StatusConflict, http.StatusNotFound) {
			return len(batch), err
		}
		if !doubt {
			w.sure(b) // this write did nothing, and there is no other
		}
		if conflicts++; !pause(ctx, conflicts) {
			return len(batch), context.Cause(ctx)
		}
		base = b.cache.newer(at, base)
		fresh, verified = false, false
	}
}

// applyTo makes the changes on a copy of the record that the object has, without the entries that have ended. It
// returns the record, the changes that were made because their callers still wait, and whether one was refused.
func (b *Backend) applyTo(ctx context.Context, lock string, base *object, batch []*change) (*record, []*change, bool, error) {
	r, err := open(lock, base)
	if err != nil {
		return nil, nil, false, err
	}
	if err := b.prune(ctx, r); err != nil {
		return nil, nil, false, err
	}
	refused, here := false, b.here(batch)
	for _, c := range here {
		refused = c.apply(r) || refused
	}
	return r, here, refused, nil
}

func creates(batch []*change) bool {
	for _, c := range batch {
		if c.creates {
			return true
		}
	}
	return false
}

// here returns the changes whose callers still wait for them.
func (b *Backend) here(batch []*change) []*change {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(batch), func(c *change) bool { return c.left })
}

// mark records that the changes are on their way from now on, and returns the doubt that there was
// before. The second result is false if one of the callers has left: nothing was recorded.
func (b *Backend) mark(batch []*change, w *writer) (bool, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.ContainsFunc(batch, func(c *change) bool { return c.left }) {
		return false, false
	}
	doubt := w.inDoubt
	w.inDoubt = true
	for _, c := range batch {
		c.sent = true
	}
	return doubt, true
}

// sure records that no earlier write can take effect any more: all are based on a replaced version,
// or were refused.
func (w *writer) sure(b *Backend) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.inDoubt, w.tries = false, 0
}

// fetch reads the object, and makes it if it does not exist. The new object contains no lease, so
// it does no harm if it arrives late; and every grant replaces a version, of which its token is
// made.
func (b *Backend) fetch(ctx context.Context, at, lock string, create bool) (*object, error) {
	before := b.cache.known(at)
	o, err := b.rest.get(ctx, at)
	if err == nil {
		b.learn(o)
		return o, nil
	}
	if !isStatus(err, http.StatusNotFound) {
		return nil, err
	}
	if before != nil {
		b.absent(at, before.object.version())
	}
	o, err = (&record{state: state{Name: lock, Ours: true}, object: newObject(at)}).seal(b.rest.clock.now(), 0)
	if err != nil || !create {
		return o, err
	}
	if o, err = b.rest.create(ctx, o); isStatus(err, http.StatusConflict) {
		o, err = b.rest.get(ctx, at)
	}
	if err != nil {
		return nil, err
	}
	b.learn(o)
	return o, nil
}

func newObject(name string) *object {
	return &object{
		APIVersion: "coordination.k8s.io/v1", Kind: "Lease",
		Metadata: metadata{Name: name, Labels: make(map[string]string), Annotations: make(map[string]string)},
	}
}

// prune removes the entries of sessions that no longer exist, and a foreign holder that has
// expired.
func (b *Backend) prune(ctx context.Context, r *record) error {
	if r.foreign && b.cache.foreignOver(r.object) {
		r.foreign, r.changed = false, true
	}
	err := r.dropDead(func(id backend.SessionID) (bool, error) { return b.lives(ctx, id, false) })
	if err == nil {
		r.promote(b.rest.clock.now())
	}
	return err
}

// allLive asks the API server for the sessions of the queue, and reports whether all exist.
func (b *Backend) allLive(ctx context.Context, r *record) (bool, error) {
	ids := make(map[backend.SessionID]bool)
	for _, e := range r.Queue {
		ids[e.Session] = true
	}
	const atOnce = 16
	var wg sync.WaitGroup
	var mu sync.Mutex
	all, failed := true, error(nil)
	slots := make(chan struct{}, atOnce)
	for id := range ids {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			live, err := b.lives(ctx, id, true)
			mu.Lock()
			defer mu.Unlock()
			all = all && live
			failed = errors.Join(failed, err)
		})
	}
	wg.Wait()
	return all, failed
}

// lives reports whether a session exists. It asks the API server if that is not known, and always
// if sure is set.
func (b *Backend) lives(ctx context.Context, id backend.SessionID, sure bool) (bool, error) {
	if b.ended.Has(id) {
		return false, nil
	}
	object := sessionName(id)
	if !sure && b.cache.known(object) != nil {
		return true, nil
	}
	o, err := b.rest.get(ctx, object)
	switch {
	case isStatus(err, http.StatusNotFound):
		b.gone(id) // it was there before its name could be written
		return false, nil
	case err != nil:
		return false, err
	}
	b.learn(o)
	return true, nil
}

// foreign returns for how long client-go's candidates are to respect the holders.
func (b *Backend) foreign(r *record) time.Duration {
	d := b.cfg.Foreign
	for _, e := range r.Queue[:r.out()] {
		if s := b.cache.known(sessionName(e.Session)); s != nil && s.session != nil {
			d = max(d, 2*s.session.TTL)
		}
	}
	return d
}

// pause waits a little, longer after more failures, before a retry.
func pause(ctx context.Context, failures int) bool {
	const least, most = 2 * time.Millisecond, 200 * time.Millisecond
	return retry.Pause(ctx, rand.N(retry.Delay(failures, least, most)))
}
