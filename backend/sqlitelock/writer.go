package sqlitelock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// The writer is the one goroutine that uses the connection. It waits for the turn and for
// SQLite's lock first and takes the requests only then. So all requests that arrived during the
// wait share one transaction, and a caller that gives up before that has not changed anything.

// maxBatch bounds the requests of one transaction, so that the other processes have their turn.
const maxBatch = 256

// request is a request to the store.
type request struct {
	waiters.Request

	// run executes the request in a transaction that may be undone and repeated. Its result is
	// the answer. A failure of the store is in the transaction.
	run func(*txn) error
	// lasting: the answer is about what survives a power failure, so it has to survive that as well,
	// also where it rests on what another request changed. A session does not survive.
	lasting bool
}

func newRequest(op string, lasting bool, run func(*txn) error) *request {
	r := &request{run: run, lasting: lasting}
	r.Op = op
	r.Init()
	return r
}

// do executes a request, and returns its answer.
func (b *Backend) do(ctx context.Context, r *request) error {
	if ctx.Err() != nil && b.life.Err() == nil { // enqueue refuses what comes after Close
		return context.Cause(ctx)
	}
	if err := b.enqueue(r); err != nil {
		return err
	}
	return r.Wait(ctx, b.life, func(op string, mayHold bool, err error) error {
		if blocked := b.file.blocked.Load(); blocked != nil {
			err = fmt.Errorf("%w: %w", err, *blocked)
		}
		return &backend.UnavailableError{Backend: backendName, Op: op, MayHold: mayHold, Err: err}
	})
}

// ask executes a request that has a result.
func ask[T any](ctx context.Context, b *Backend, op string, lasting bool, run func(*txn) T) (T, error) {
	var res, none T
	err := b.do(ctx, newRequest(op, lasting, func(t *txn) error {
		res = run(t)
		return nil
	}))
	if err != nil {
		return none, err // the writer may still be writing to res
	}
	return res, nil
}

// enqueue hands a request to the writer.
func (b *Backend) enqueue(r *request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.refusal(r.Op, false); err != nil {
		return err
	}
	b.queue = append(b.queue, r)
	waiters.Signal(b.queued)
	return nil
}

// refusal returns why nothing is done any more, or nil. Backend.mu is held.
func (b *Backend) refusal(op string, mayHold bool) error {
	switch {
	case b.closed:
		return backend.ErrClosed
	case b.broken != nil:
		return unavailable(op, mayHold, b.broken)
	}
	return nil
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

// turnOver takes one turn, executes one batch of requests in it, and then answers them.
func (b *Backend) turnOver(ctx context.Context) {
	defer b.setAlarm()
	committed, err := b.inTurn(ctx)
	b.refuse(ctx, err)
	for _, t := range committed {
		b.finish(t)
	}
}

// inTurn takes one turn and executes one batch of requests in it. It returns what was committed. The error
// is that of all requests in the queue.
func (b *Backend) inTurn(ctx context.Context) ([]*txn, error) {
	b.file.blocked.Store(&errTurn)
	err := b.turn.lock(ctx)
	b.file.blocked.Store(nil)
	if err != nil {
		return nil, err
	}
	defer b.turn.unlock()
	if err := b.file.begin(ctx); err != nil {
		return nil, err
	}
	reqs := b.takeQueue()
	if len(reqs) == 0 { // their callers have given up
		b.file.rollback(context.WithoutCancel(ctx))
		return nil, nil
	}
	return b.batches(ctx, reqs), nil
}

var errTurn = errors.New("another process has its turn with the lock file")

// takeQueue takes the next requests.
func (b *Backend) takeQueue() []*request {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.queue), maxBatch)
	reqs := make([]*request, 0, n+1)
	if !b.look.Empty() {
		reqs = append(reqs, b.lookRequest())
	}
	for _, r := range b.queue[:n] {
		if r.Take() {
			reqs = append(reqs, r)
		}
	}
	b.queue = b.queue[n:]
	if len(b.queue) > 0 {
		waiters.Signal(b.queued)
	} else {
		b.queue = nil
	}
	return reqs
}

// refuse answers all requests in the queue with an error, if it is one. When ctx has ended their
// callers know already.
func (b *Backend) refuse(ctx context.Context, err error) {
	if errors.Is(err, ErrReplaced) {
		b.breakDown(err)
	}
	for err != nil && ctx.Err() == nil {
		reqs := b.takeQueue()
		if len(reqs) == 0 {
			return
		}
		for _, r := range reqs {
			r.Answer(unavailable(r.Op, false, err))
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
	for _, k := range b.calls.Leases() {
		for _, w := range b.calls.Of(k) {
			w.Give(waiters.Verdict{Err: unavailable("acquire", true, err)})
		}
	}
	for w := range b.watchers {
		w.Stop(unavailable("watch", false, err))
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
			r.Answer(unavailable(r.Op, t.committing, err))
		}
		return nil
	}
	var done []*txn
	for _, r := range reqs {
		if err := b.file.begin(b.life); err != nil {
			r.Answer(unavailable(r.Op, false, err))
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
	for addr, l := range t.notifications {
		b.notify(addr, l)
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
	waiters.Signal(b.unsynced)
}

// sync is the syncer. It syncs the log outside of any transaction, so that the next ones, of this
// process and of others, continue during it. One sync serves all that arrived while the previous
// one ran. After a failure none is tried: the system reports a failed write once, and the next sync
// succeeds without it.
func (b *Backend) sync() {
	var err error
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
		if err == nil {
			if err = b.file.sync(); err != nil {
				err = fmt.Errorf("%w: %w", ErrSync, err)
				b.breakDown(err)
			}
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
	clear(b.watchers)
	b.queue = []*request{newRequest("close", false, (*txn).signOff)}
	signedOn := b.signedOn
	b.mu.Unlock()
	if signedOn {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(b.life), 100*time.Millisecond)
		defer cancel()
		b.turnOver(ctx)
	}
}
