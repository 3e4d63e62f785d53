package sqlitelock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// The writer is the one goroutine that uses the connection. It waits for the turn
// and for SQLite's lock first and takes the requests only then: whatever came
// meanwhile shares one transaction, and a caller who gives up before that has not
// changed anything.

// maxBatch bounds the requests of one transaction, so that the other processes have
// their turn.
const maxBatch = 256

// request is a question to the store.
type request struct {
	op string
	// run does it, in a transaction that may be undone and done again. What it
	// returns is the answer; that the store failed is in the transaction.
	run  func(*txn) error
	fate atomic.Uint32
	done chan struct{} // closed when err is set
	err  error
}

// The fates of a request.
const (
	isQueued uint32 = iota
	isTaken
	isCancelled
)

// cancel takes the request back, unless it was taken already.
func (r *request) cancel() bool { return r.fate.CompareAndSwap(isQueued, isCancelled) }

func (r *request) take() bool { return r.fate.CompareAndSwap(isQueued, isTaken) }

func (r *request) answer(err error) {
	r.err = err
	close(r.done)
}

// do has a request done.
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

// kick tells the goroutine that has the other end that there is something.
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

// turnOver has one turn and does the requests of one batch in it.
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

// begin starts a transaction and takes the requests for it; none: there is no
// transaction. Requests that are cancelled meanwhile do not keep it waiting.
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

var errNobody = errors.New("nobody waits for it any more")

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

// refuse answers all that are in the queue with an error, if it is one. When ctx
// has ended they know already.
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

// breakDown lets nothing be done any more, and tells those who wait.
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

// batches does the requests, in the transaction that has begun. When that fails they
// are done one by one, so that none suffers from another. It gives what was
// committed.
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

// batch does the requests and commits.
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

// delivery is an answer, or a wake-up, that waits for the commit, and with durable
// set for the disk.
type delivery struct {
	durable bool
	give    func(error) // what the disk said
}

// syncLater gives answers to the syncer.
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

// sync is the syncer. It syncs the log outside of any transaction, so that the next
// ones, of this process and of others, go on meanwhile; one sync serves all that
// came while the one before it ran.
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

// leave is the writer's last turn: watchers that are still there are signed off, so
// that the others do not write events for them.
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
