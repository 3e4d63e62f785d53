package sqllease

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Config says how leases are kept.
type Config struct {
	// Store is the database. Required.
	Store Store
	// Name of the backend, for errors and logs. Required.
	Name string
	// Caps is what the backend can do.
	Caps backend.Capabilities
	// Addr is where this value is told of grants and losses; empty: nowhere, it looks.
	Addr string
	// Quick is how many locks that nobody else wants are tried in one round trip first; none
	// is.
	Quick int
	// Rest is how often a value looks that is told nothing, while somebody waits.
	Rest Rest
	// Conns is how many connections there are, 3 or more.
	Conns int
	// Logger is told what is nobody's error. Required.
	Logger *slog.Logger
}

// Leases keeps leases. Its methods may be called at once. Make it with New.
type Leases struct {
	store Store
	name  string
	caps  backend.Capabilities
	addr  string // empty: this value is told nothing
	quick int    // of so many locks at once
	pace  Rest
	log   *slog.Logger

	life       context.Context         //nolint:containedctx // it is what Close ends
	end        context.CancelCauseFunc // ends life
	work       sync.WaitGroup          // the goroutines
	lone       chan struct{}           // has room for those who wait for a row
	maxFlights int                     // transactions under way at once, besides those
	// Each has capacity 1, is sent to without waiting, and is never closed.
	toLook, toSweep chan struct{}
	gate            chan struct{} // has room for one: who looks at the tables
	seen            atomic.Bool   // they were there

	mu       sync.Mutex // guards what follows
	closed   bool
	queue    []*request
	flying   int
	boarding bool                // a flight is about to take what is in the queue
	busy     map[string]struct{} // locks in a flight
	fronts   map[string]int64    // of long lines: see front.go
	crowded  map[string]struct{} // locks that several want: see quick.go
	look     letter              // what to look at next
	waiting  map[Key][]*waiter
	sessions map[backend.SessionID]*listener
	own      map[backend.SessionID]struct{} // that were opened here and have not ended
	strange  map[string]struct{}            // locks with a line that others may free: see wait.go
	hearing  bool                           // letters come
	moved    time.Time                      // when something changed for those who wait
	still    bool                           // it does not put things in order: for tests
	watchers int                            // Watch calls under way
	alarm    *time.Timer                    // to look when nobody says so
	alarmAt  time.Time                      // when; zero: it is not set

	closing sync.Once
}

// New makes leases. It sends nothing. The caller closes them.
func New(cfg Config) *Leases {
	b := &Leases{
		store: cfg.Store, name: cfg.Name, caps: cfg.Caps, addr: cfg.Addr, quick: cfg.Quick, pace: cfg.Rest, log: cfg.Logger,
		lone: make(chan struct{}, max(1, cfg.Conns/4)), maxFlights: min(2, cfg.Conns-2), //nolint:mnd // a quarter
		gate: make(chan struct{}, 1), toLook: make(chan struct{}, 1), toSweep: make(chan struct{}, 1),
		busy: make(map[string]struct{}), crowded: make(map[string]struct{}), fronts: make(map[string]int64),
		waiting: make(map[Key][]*waiter), sessions: make(map[backend.SessionID]*listener),
		own: make(map[backend.SessionID]struct{}), strange: make(map[string]struct{}),
	}
	b.life, b.end = context.WithCancelCause(context.Background())
	b.alarm = time.AfterFunc(time.Hour, b.rouse)
	b.alarm.Stop()
	b.work.Go(b.lookAtLetters)
	b.work.Go(b.sweepNowAndThen)
	return b
}

// Life ends when the leases are closed, with backend.ErrClosed.
func (b *Leases) Life() context.Context { return b.life }

// Go runs f, which ends soon after Life; Close waits for it.
func (b *Leases) Go(f func()) { b.work.Go(f) }

// Closed reports whether Close was called.
func (b *Leases) Closed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// Close ends the goroutines, and the calls under way with ErrClosed. Leases stay. Closing
// again does nothing.
func (b *Leases) Close() {
	b.closing.Do(func() {
		b.mu.Lock()
		b.closed = true
		b.alarm.Stop()
		b.mu.Unlock()
		b.end(backend.ErrClosed)
		b.work.Wait()
	})
}

// Within is ctx, which also ends when the leases are closed, and after the longest time
// that a question may take.
func (b *Leases) Within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithTimeoutCause(ctx, flightTime, context.DeadlineExceeded)
	ctx, leave := backend.Within(ctx, b.life)
	return ctx, func() { leave(); cancel() }
}

// InUse has things put in order now and then, from now on.
func (b *Leases) InUse() { kick(b.toSweep) }

// KeepStill stops that. It is for tests.
func (b *Leases) KeepStill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.still = true
}

// Watching notes so many more watchers, for whom what is over is found soon.
func (b *Leases) Watching(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watchers += n
	kick(b.toSweep)
}

// direct asks the store outside of flights. What it asks may be done twice, and late: a
// connection that broke while nobody used it is not an error.
func (b *Leases) direct(ctx context.Context, op string, ask func(context.Context) error) error {
	return b.directly(ctx, op, true, ask)
}

// directly is direct. late: what is asked may also be done after what is asked for next.
func (b *Leases) directly(ctx context.Context, op string, late bool, ask func(context.Context) error) error {
	if err := b.Ready(ctx, op); err != nil {
		return err
	}
	within, stop := b.Within(ctx)
	defer stop()
	for try := 1; ; try++ {
		err := ask(within)
		switch {
		case err == nil:
			return nil
		case b.life.Err() != nil:
			return backend.ErrClosed
		case ctx.Err() != nil:
			return b.store.Unavailable(op, true, context.Cause(ctx))
		case within.Err() != nil || !b.Again(err, try, true) || !late && b.onItsWay(err):
			return b.store.Unavailable(op, true, err)
		}
	}
}

// onItsWay reports whether what failed may still come to the server.
func (b *Leases) onItsWay(err error) bool {
	f := b.store.Fault(err)
	return !f.Answered && !f.Unsent && !f.Ended
}

// opLook is what is done for waiters at rest.
const opLook = "look"

// Ready sees to it that the store can be used.
func (b *Leases) Ready(ctx context.Context, op string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if b.Closed() {
		return backend.ErrClosed
	}
	if !b.seen.Load() {
		if err := b.migrate(ctx, op); err != nil {
			return err
		}
	}
	if op != opLook {
		kick(b.toSweep)
	}
	return nil
}

// migrate has the tables made the first time. The others wait meanwhile.
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

// Setup does what is not a question about leases, for up to the longest time that a question
// may take. Its error is as callers are told.
func (b *Leases) Setup(ctx context.Context, op string, do func(context.Context) error) error {
	within, stop := b.Within(ctx)
	defer stop()
	err := do(within)
	switch {
	case err == nil:
		return nil
	case b.life.Err() != nil:
		return backend.ErrClosed
	case ctx.Err() != nil:
		return b.store.Unavailable(op, false, context.Cause(ctx))
	}
	return b.store.Unavailable(op, false, err)
}

// Capabilities are those of leases in tables. pushes: the database tells other values what
// concerns them.
func Capabilities(name string, pushes bool) backend.Capabilities {
	return backend.Capabilities{
		Name:      name,
		Sessions:  true,
		Timed:     true,
		Shared:    true,
		Permits:   true,
		Reentrant: true,
		FIFO:      true,
		Push:      pushes,
		LossPush:  pushes,
		Watch:     pushes,
		Durable:   true,
		TokenKind: "counter",
		MinTTL:    100 * time.Millisecond,
		MaxTTL:    365 * 24 * time.Hour,
		ExpiryLag: time.Second,
	}
}

// kick tells the goroutine that has the other end that there is something.
func kick(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
