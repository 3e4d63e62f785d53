package sqllease

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// Config is the configuration of Leases.
type Config struct {
	// Store is the database. Required.
	Store Store
	// Caps are the capabilities of the backend.
	Caps backend.Capabilities
	// Addr is the channel on which this value is notified of grants and losses. Where it is empty
	// there are no notifications, and the value polls.
	Addr string
	// Quick is how many locks, presumed uncontended, are first tried together in one round trip.
	// Zero disables that.
	Quick int
	// Rest is how often a value without notifications polls while it has waiters. One poll reads for all of them.
	//
	// Where all that is waited for is held under sessions of this very value, it is released here,
	// and the release reveals the next holder. Only a Break hands a lease over elsewhere. Then
	// Longest is short enough.
	Rest retry.Rest
	// Conns is the number of connections, 3 or more.
	Conns int
}

// ValidateConns checks the number of connections of a Config: *backend.InvalidError.
func ValidateConns(n int) error {
	if n < 3 || n > 1000 {
		return &backend.InvalidError{Field: "max_conns", Value: strconv.Itoa(n), Bound: "3 to 1000"}
	}
	return nil
}

// Leases keeps leases. Its methods are safe for concurrent use. Use New to make one.
type Leases struct {
	store Store
	caps  backend.Capabilities
	addr  string // empty: this value gets no notifications
	quick int    // the most locks of one quick batch
	pace  retry.Rest

	life       context.Context         //nolint:containedctx // Close ends it
	end        context.CancelCauseFunc // ends life
	work       sync.WaitGroup          // the goroutines
	lone       chan struct{}           // has room for the batches that wait for a row
	maxBatches int                     // concurrent transactions, besides those
	// Each has capacity 1, is sent to without waiting, and is never closed.
	toLook, toSweep chan struct{}
	gate            chan struct{} // has room for one: the goroutine that checks the tables
	seen            atomic.Bool   // the tables were found
	calls           *registry     // has a mutex of its own

	mu       sync.Mutex // guards what follows, and is held when life ends
	queue    []*request
	running  int
	taking   bool                           // a batch is about to take the queue
	busy     map[string]struct{}            // locks in a batch
	fronts   map[string]int64               // of long queues: see front.go
	memories map[string]memory              // of locks: see quick.go
	tending  map[string]struct{}            // locks for which a tend is in the queue
	judging  bool                           // sessions past their end are being ended
	look     waiters.Look                   // what to read next
	own      map[backend.SessionID]struct{} // opened here and not ended
	strange  map[string]struct{}            // locks with a queue that other values may free: see wait.go
	hearing  bool                           // notifications arrive
	moved    time.Time                      // the last change for the waiters
	doubted  time.Time                      // the last commit without an answer
	still    bool                           // no periodic maintenance: for tests
	watchers int                            // Watch calls in progress
	alarm    *time.Timer                    // polls where no notification arrives
	alarmAt  time.Time                      // when it fires; zero: it is not set
}

// New returns Leases. It sends nothing. The caller must close them.
func New(cfg Config) *Leases {
	b := &Leases{
		store: cfg.Store, caps: cfg.Caps, addr: cfg.Addr, quick: cfg.Quick, pace: cfg.Rest,
		lone: make(chan struct{}, max(1, cfg.Conns/4)), maxBatches: min(2, cfg.Conns-2), //nolint:mnd // a quarter
		gate: make(chan struct{}, 1), toLook: make(chan struct{}, 1), toSweep: make(chan struct{}, 1),
		busy: make(map[string]struct{}), memories: make(map[string]memory), fronts: make(map[string]int64),
		own: make(map[backend.SessionID]struct{}), strange: make(map[string]struct{}), tending: make(map[string]struct{}),
	}
	b.life, b.end = context.WithCancelCause(context.Background())
	b.calls = waiters.New[ofWaiter, struct{}](b.life)
	b.alarm = time.AfterFunc(time.Hour, b.wake)
	b.alarm.Stop()
	b.work.Go(b.readChanges)
	b.work.Go(b.sweepNowAndThen)
	return b
}

// Life returns a context that ends when the Leases are closed, with backend.ErrClosed.
func (b *Leases) Life() context.Context { return b.life }

// Go runs f in a goroutine. f must return soon after Life ends; Close waits for it.
func (b *Leases) Go(f func()) { b.work.Go(f) }

// closed reports whether Close was called.
func (b *Leases) closed() bool { return b.life.Err() != nil }

// Close ends the goroutines, and the calls in progress with ErrClosed. Leases stay in the
// database. A second Close does nothing.
func (b *Leases) Close() {
	b.mu.Lock()
	b.end(backend.ErrClosed)
	b.alarm.Stop()
	b.mu.Unlock()
	b.work.Wait()
}

// Within returns a context derived from ctx that also ends when the Leases are closed, and after
// the longest time that a request may take.
func (b *Leases) Within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithTimeoutCause(ctx, batchTime, context.DeadlineExceeded)
	ctx, leave := backend.Within(ctx, b.life)
	return ctx, func() { leave(); cancel() }
}

// KeepStill stops the periodic maintenance. It is for tests.
func (b *Leases) KeepStill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.still = true
}

// NeverQuick makes every request take the long way. It is for tests.
func (b *Leases) NeverQuick() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.quick = 0
}

// Watching adds n to the number of watchers. While there are any, expired leases are found soon.
func (b *Leases) Watching(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watchers += n
	waiters.Signal(b.toSweep)
}

// direct sends a request to the store outside of batches. The request may be executed twice, and
// late. So a connection that broke while it was idle is not an error.
func (b *Leases) direct(ctx context.Context, op string, ask func(context.Context) error) error {
	return b.directly(ctx, op, true, ask)
}

// directly is direct. late: the request may also be executed after the one that follows it.
func (b *Leases) directly(ctx context.Context, op string, late bool, ask func(context.Context) error) error {
	if err := b.Ready(ctx, op); err != nil {
		return err
	}
	return b.retry(ctx, op, true, late, ask)
}

// Setup runs do, which is not a request about leases and may be done twice. It returns the error for the caller.
func (b *Leases) Setup(ctx context.Context, op string, do func(context.Context) error) error {
	return b.retry(ctx, op, false, true, do)
}

// retry runs ask, again after errors that a retry may mend, for at most the longest time that a request may
// take. mayHold and late are those of refusal and directly.
func (b *Leases) retry(ctx context.Context, op string, mayHold, late bool, ask func(context.Context) error) error {
	within, stop := b.Within(ctx)
	defer stop()
	for try := 1; ; try++ {
		err := ask(within)
		if err == nil || within.Err() != nil || errors.Is(err, backend.ErrUnsupported) || !b.Again(err, try, true) || !late && b.onItsWay(err) {
			return b.refusal(ctx, op, mayHold, err)
		}
	}
}

// answer is direct for a request that has an answer.
func answer[T any](ctx context.Context, b *Leases, op string, ask func(context.Context) (T, error)) (T, error) {
	var got T
	err := b.direct(ctx, op, func(ctx context.Context) error {
		var err error
		got, err = ask(ctx)
		return err
	})
	return got, err
}

// refusal returns the error for the caller. mayHold: the request may have been executed all the same.
func (b *Leases) refusal(ctx context.Context, op string, mayHold bool, err error) error {
	switch {
	case err == nil:
		return nil
	case b.closed():
		return backend.ErrClosed
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return b.store.Unavailable(op, mayHold, err)
}

// onItsWay reports whether the failed request may still reach the server.
func (b *Leases) onItsWay(err error) bool {
	f := b.store.Fault(err)
	return !f.Answered && !f.Unsent && !f.Ended
}

// opLook names the reads for waiters at rest.
const opLook = "look"

// Ready makes sure that the store can be used.
func (b *Leases) Ready(ctx context.Context, op string) error {
	if b.closed() {
		return backend.ErrClosed
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !b.seen.Load() {
		if err := b.migrate(ctx, op); err != nil {
			return err
		}
	}
	if op != opLook {
		waiters.Signal(b.toSweep)
	}
	return nil
}

// migrate creates the tables the first time, while the other callers wait.
func (b *Leases) migrate(ctx context.Context, op string) error {
	select {
	case b.gate <- struct{}{}:
		defer func() { <-b.gate }()
	case <-ctx.Done():
		return b.store.Unavailable(op, false, context.Cause(ctx))
	case <-b.life.Done():
		return backend.ErrClosed
	}
	if b.seen.Load() {
		return nil
	}
	if err := b.store.Migrate(ctx); err != nil {
		return err
	}
	b.seen.Store(true)
	return nil
}

// Capabilities returns the capabilities of leases in tables. pushes: the database notifies other
// values of what concerns them.
func Capabilities(name string, pushes bool) backend.Capabilities {
	caps := lockstate.Capabilities(name)
	caps.Push, caps.LossPush, caps.Watch = pushes, pushes, pushes
	return caps
}
