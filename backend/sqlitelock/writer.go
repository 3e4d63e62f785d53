package sqlitelock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// The writer is the one goroutine that uses the connection. It waits for the turn and for
// SQLite's lock first and takes the requests only then. So all requests that arrived during the
// wait share one transaction, and a caller that gives up before that has not changed anything.

// maxBatch bounds the requests of one transaction, so that the other processes have their turn.
const maxBatch = 256

// request is a request to the store.
type request struct {
	op string
	// run executes the request in a transaction that may be undone and repeated. Its result is
	// the answer. A failure of the store is in the transaction.
	run  func(*txn) error
	fate atomic.Uint32
	done chan struct{} // closed when err is set
	err  error
}

// The states of a request.
const (
	isQueued uint32 = iota
	isTaken
	isCancelled
)

// cancel withdraws the request unless it was already taken. It reports whether it did.
func (r *request) cancel() bool { return r.fate.CompareAndSwap(isQueued, isCancelled) }

func (r *request) take() bool { return r.fate.CompareAndSwap(isQueued, isTaken) }

func (r *request) answer(err error) {
	r.err = err
	close(r.done)
}

// do executes a request, and returns its answer.
func (b *Backend) do(ctx context.Context, op string, run func(*txn) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r, err := b.enqueue(op, run)
	if err != nil {
		return err
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		mayHold := !r.cancel()
		select {
		case <-r.done:
			return r.err
		default:
		}
		return &backend.UnavailableError{Backend: backendName, Op: op, MayHold: mayHold, Err: context.Cause(ctx)}
	case <-b.life.Done():
		r.cancel()
		return backend.ErrClosed
	}
}

// enqueue hands a request to the writer.
func (b *Backend) enqueue(op string, run func(*txn) error) (*request, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return nil, backend.ErrClosed
	case b.broken != nil:
		return nil, unavailable(op, false, b.broken)
	}
	r := &request{op: op, run: run, done: make(chan struct{})}
	b.queue = append(b.queue, r)
	kick(b.queued)
	return r, nil
}

// kick signals the goroutine at the other end of c.
func kick(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// write is the writer.
func (b *Backend) write() {
	for {
		select {
		case <-b.queued:
		case <-b.life.Done():
			b.leave()
			return
		}
		b.turnOver(b.life)
	}
}

// turnOver takes one turn and executes one batch of requests in it.
func (b *Backend) turnOver(ctx context.Context) {
	defer b.setAlarm()
	if err := b.turn.lock(ctx); err != nil {
		b.refuse(ctx, err)
		return
	}
	reqs, err := b.begin(ctx)
	if len(reqs) == 0 || err != nil {
		b.turn.unlock()
		b.refuse(ctx, err)
		return
	}
	batches := b.batches(ctx, reqs)
	b.turn.unlock()
	for _, t := range batches {
		b.finish(t)
	}
}

// begin starts a transaction and returns the requests for it. Without requests there is no
// transaction. Requests that are cancelled during the wait do not prolong it.
func (b *Backend) begin(ctx context.Context) ([]*request, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := untilFree(ctx, func() error {
		if !b.wanted() {
			cancel(errNobody)
		}
		if err := b.file.replaced(); err != nil {
			return err
		}
		return b.file.exec(context.WithoutCancel(ctx), "BEGIN IMMEDIATE")
	})
	if errors.Is(err, ErrReplaced) {
		b.breakDown(err)
	}
	if errors.Is(err, errNobody) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	reqs := b.takeQueue()
	if len(reqs) == 0 {
		b.file.rollback(context.WithoutCancel(ctx))
	}
	return reqs, nil
}

var errNobody = errors.New("no caller waits for the result any more")

// wanted reports whether there is something to do that was not cancelled.
func (b *Backend) wanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.look.empty() {
		return true
	}
	for _, r := range b.queue {
		if r.fate.Load() == isQueued {
			return true
		}
	}
	return false
}

// takeQueue takes the next requests.
func (b *Backend) takeQueue() []*request {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.queue), maxBatch)
	reqs := make([]*request, 0, n+1)
	if !b.look.empty() {
		reqs = append(reqs, b.lookRequest())
	}
	for _, r := range b.queue[:n] {
		if r.take() {
			reqs = append(reqs, r)
		}
	}
	b.queue = b.queue[n:]
	if len(b.queue) > 0 {
		kick(b.queued)
	} else {
		b.queue = nil
	}
	return reqs
}

// refuse answers all requests in the queue with an error, if it is one. When ctx has ended their
// callers know already.
func (b *Backend) refuse(ctx context.Context, err error) {
	for err != nil && ctx.Err() == nil {
		reqs := b.takeQueue()
		if len(reqs) == 0 {
			return
		}
		for _, r := range reqs {
			r.answer(unavailable(r.op, false, err))
		}
	}
}

// breakDown makes the backend value refuse everything from now on, and notifies the waiters.
func (b *Backend) breakDown(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != nil {
		return
	}
	b.broken = err
	for _, ws := range b.waiting {
		for _, w := range ws {
			w.give(answer{err: unavailable("acquire", true, err)})
		}
	}
	for w := range b.watchers {
		w.stop(err)
	}
}

// batches executes the requests, in the transaction that has begun. When that fails they are
// executed one by one, so that none suffers from another. It returns what was committed.
func (b *Backend) batches(ctx context.Context, reqs []*request) []*txn {
	ctx = context.WithoutCancel(ctx)
	t, err := b.batch(ctx, reqs)
	if err == nil {
		return []*txn{t}
	}
	if len(reqs) == 1 || t.committing {
		for _, r := range reqs {
			r.answer(unavailable(r.op, t.committing, err))
		}
		return nil
	}
	var done []*txn
	for _, r := range reqs {
		if err := b.file.begin(b.life); err != nil {
			r.answer(unavailable(r.op, false, err))
			continue
		}
		done = append(done, b.batches(ctx, []*request{r})...)
	}
	return done
}

// batch executes the requests and commits.
func (b *Backend) batch(ctx context.Context, reqs []*request) (*txn, error) {
	t := &txn{b: b, ctx: ctx}
	t.open()
	for _, r := range reqs {
		t.run(r)
	}
	t.close()
	if t.err == nil {
		t.committing = t.wrote
		t.fail(b.file.commit(ctx))
	}
	if t.err == nil {
		t.remember()
	} else {
		b.file.rollback(ctx)
		if errors.Is(t.err, ErrReplaced) {
			b.breakDown(t.err)
		}
	}
	return t, t.err
}

// finish does what waited for the commit.
func (b *Backend) finish(t *txn) {
	for _, f := range t.after {
		f()
	}
	for addr, l := range t.letters {
		b.post(addr, l)
	}
	var later []delivery
	for _, d := range t.deliveries {
		if d.durable {
			later = append(later, d)
		} else {
			d.give(nil)
		}
	}
	b.syncLater(later, t.meta.reserved, t.wantsSync())
	b.mu.Lock()
	defer b.mu.Unlock()
	b.due = instant(t.meta.due)
}

// delivery is an answer, or a wake-up, that waits for the commit, and with durable set for the
// disk.
type delivery struct {
	durable bool
	give    func(error) // with the result of the sync
}

// syncLater passes answers to the syncer.
func (b *Backend) syncLater(ds []delivery, reserved int64, wanted bool) {
	if len(ds) == 0 && !wanted {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.toSync = append(b.toSync, ds...)
	b.toSync = append(b.toSync, delivery{give: func(err error) {
		if err == nil {
			b.mu.Lock()
			b.synced = max(b.synced, reserved)
			b.mu.Unlock()
		}
	}})
	kick(b.unsynced)
}

// sync is the syncer. It syncs the log outside of any transaction, so that the next ones, of this
// process and of others, continue during it. One sync serves all that arrived while the previous
// one ran.
func (b *Backend) sync() {
	for {
		select {
		case <-b.unsynced:
		case <-b.life.Done():
			return
		}
		b.mu.Lock()
		ds := b.toSync
		b.toSync = nil
		b.mu.Unlock()
		err := b.file.sync()
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrSync, err)
			b.breakDown(err)
		}
		for _, d := range ds {
			d.give(err)
		}
	}
}

// leave is the writer's last turn: it unregisters watchers that are still there, so that the
// others do not write events for them.
func (b *Backend) leave() {
	b.mu.Lock()
	signedOn := b.signedOn
	b.queue = nil
	if signedOn {
		b.queue = []*request{{op: "close", run: signOff, done: make(chan struct{})}}
	}
	b.mu.Unlock()
	if !signedOn {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.life), 100*time.Millisecond)
	defer cancel()
	b.turnOver(ctx)
}
