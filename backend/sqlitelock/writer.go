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

// do executes a request, and returns its answer, or what is wrong with its input.
func (b *Backend) do(ctx context.Context, invalid error, r *request) error {
	if invalid != nil {
		return invalid
	}
	if ctx.Err() != nil && b.life.Err() == nil { // enqueue refuses what comes after Close
		return context.Cause(ctx)
	}
	if b.life.Err() != nil {
		return b.ended(r.Op, false)
	}
	b.mu.Lock()
	b.queue = append(b.queue, r)
	b.mu.Unlock()
	waiters.Signal(b.queued)
	err := r.Wait(ctx, b.life, func(op string, mayHold bool, err error) error {
		if blocked := b.file.blocked.Load(); blocked != nil {
			err = fmt.Errorf("%w: %w", err, *blocked)
		}
		return &backend.UnavailableError{Backend: backendName, Op: op, MayHold: mayHold, Err: err}
	})
	return b.orEnded(r.Op, err)
}

// ended returns the error of a call that the end of the backend value ended.
func (b *Backend) ended(op string, mayHold bool) error {
	if b.closed.Load() {
		return backend.ErrClosed
	}
	return unavailable(op, mayHold, context.Cause(b.life))
}

// orEnded returns the error of a call that had begun. ErrClosed stands for any end of the backend value.
func (b *Backend) orEnded(op string, err error) error {
	if errors.Is(err, backend.ErrClosed) {
		return b.ended(op, true)
	}
	return err
}

// ask executes a request that has a result.
func ask[T any](ctx context.Context, b *Backend, invalid error, op string, lasting bool, run func(*txn) T) (T, error) {
	var res, none T
	err := b.do(ctx, invalid, newRequest(op, lasting, func(t *txn) error {
		res = run(t)
		return nil
	}))
	if err != nil {
		return none, err // the writer may still be writing to res
	}
	return res, nil
}

// write is the writer.
func (b *Backend) write() {
	var alarm <-chan time.Time // polls where no notification arrives
	due := never               // nothing in the file ends before it
	for {
		select {
		case <-b.queued:
		case <-alarm:
			b.checkAt, b.byTimer = never, true
			b.lookAt(notification{Look: waiters.Look{All: true}})
			continue // that is in the queue now
		case <-b.life.Done():
			b.leave()
			return
		}
		for _, t := range b.turnOver(b.life) {
			due = instant(t.meta.due)
		}
		alarm = b.nextAlarm(due)
	}
}

// turnOver takes one turn, executes one batch of requests in it, and then answers them. It returns what was
// committed.
func (b *Backend) turnOver(ctx context.Context) []*txn {
	committed, err := b.inTurn(ctx)
	b.refuse(ctx, err)
	for _, t := range committed {
		b.finish(t)
	}
	return committed
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
	if r := b.lookRequest(); r != nil {
		reqs = append(reqs, r)
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
	b.endIfReplaced(err)
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

// endIfReplaced makes the backend value refuse everything from now on, if its file is not the one at its path.
func (b *Backend) endIfReplaced(err error) {
	if errors.Is(err, ErrReplaced) {
		b.end(err)
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
	t := &txn{b: b, ctx: ctx, feed: b.feed}
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
		b.feed = t.feed
		t.remember()
	} else {
		b.file.rollback(ctx)
		b.endIfReplaced(t.err)
	}
	return t, t.err
}

// finish does what waited for the commit.
func (b *Backend) finish(t *txn) {
	for addr, lines := range t.notifications {
		if b.inbox != nil {
			b.inbox.send(addr, lines)
		}
	}
	var later []delivery
	for _, d := range t.deliveries {
		if d.durable {
			later = append(later, d)
		} else {
			d.give()
		}
	}
	if len(later) > 0 || t.wantsSync() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.toSync, b.reserved = append(b.toSync, later...), t.meta.reserved
		waiters.Signal(b.unsynced)
	}
}

// delivery is an answer, or a wake-up, that waits for the commit, and with durable set for the
// disk.
type delivery struct {
	durable bool
	give    func()
}

// sync is the syncer. It syncs the log outside of any transaction, so that the next ones, of this
// process and of others, continue during it. One sync serves all that arrived while the previous
// one ran. After a failure none is tried: the system reports a failed write once, and the next sync
// succeeds without it.
func (b *Backend) sync() {
	for {
		select {
		case <-b.unsynced:
		case <-b.life.Done():
			return
		}
		b.mu.Lock()
		ds, reserved := b.toSync, b.reserved
		b.toSync = nil
		b.mu.Unlock()
		if err := b.file.sync(); err != nil { // the callers see the end as well
			b.end(fmt.Errorf("%w: %w", ErrSync, err))
			return
		}
		b.mu.Lock()
		b.synced = reserved
		b.mu.Unlock()
		for _, d := range ds {
			d.give()
		}
	}
}

// leave is the writer's last turn: it unregisters this value as a watcher, so that the others do not write
// events for it.
func (b *Backend) leave() {
	if b.feed == notWatching {
		return
	}
	b.mu.Lock()
	clear(b.watchers)
	b.queue, b.look = nil, notification{events: true}
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.life), 100*time.Millisecond)
	defer cancel()
	b.turnOver(ctx)
}
