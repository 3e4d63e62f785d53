package connlease

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// Config is the configuration of Leases.
type Config struct {
	// Store is the database. Required.
	Store Store
	// Caps are the capabilities of the backend. With Push the store queues a request that waits
	// (Try.Queue), and wakes it when the lock may be free.
	Caps backend.Capabilities
	// Rest is how often a session with waiters tries in any case. Required.
	Rest retry.Rest
	// LookEvery is how often a session with leases reads whether they were marked. 0: never,
	// because it is notified.
	LookEvery time.Duration
}

// Leases keeps leases. Its methods are safe for concurrent use. Use New to make one.
type Leases struct {
	cfg   Config
	store Store

	life context.Context         //nolint:containedctx // Close ends it
	end  context.CancelCauseFunc // ends life
	work sync.WaitGroup          // the goroutines of the sessions
	set  atomic.Bool             // the set-up succeeded

	mu       sync.Mutex // guards what follows
	sessions map[backend.SessionID]*session
	dead     *lockstate.Ended[backend.SessionID] // that have ended
}

const (
	// remembered is how long what ended, or was abandoned, is kept from coming back: longer than a
	// late request can be in transit.
	remembered = 10 * time.Minute
	// askTime bounds one call of the database. A call that takes longer is on a connection that
	// is dead without any report of that, and the caller may have no time limit.
	askTime = 10 * time.Second
	// setupTime bounds the creation of the tables.
	setupTime = time.Minute
)

// The operations, for errors.
const opOpen, opAcquire = "open session", "acquire"

// New returns Leases. It sends nothing. The caller must close them.
func New(cfg Config) *Leases {
	b := &Leases{
		cfg: cfg, store: cfg.Store,
		sessions: make(map[backend.SessionID]*session), dead: lockstate.NewEnded[backend.SessionID](remembered),
	}
	b.life, b.end = context.WithCancelCause(context.Background())
	return b
}

// Life returns a context that ends when the Leases are closed, with backend.ErrClosed.
func (b *Leases) Life() context.Context { return b.life }

// Close ends the sessions, with their leases, and the goroutines. It takes at most a second where
// the database is unavailable. A second Close does nothing.
func (b *Leases) Close() {
	b.mu.Lock()
	b.end(backend.ErrClosed) // no session begins after this
	b.mu.Unlock()
	b.work.Wait()
}

// begin begins every call. invalid is what is wrong with its arguments. The context that it returns
// also ends with Close. Errors: invalid; ErrClosed; ctx's cause.
func (b *Leases) begin(ctx context.Context, invalid error) (context.Context, func(), error) {
	if invalid != nil {
		return nil, nil, invalid
	}
	return backend.Begin(ctx, b.life)
}

// Ready makes sure that Store.Setup has succeeded once. Errors: ErrClosed; ctx's cause, in a
// *backend.UnavailableError; those of Store.Setup.
func (b *Leases) Ready(ctx context.Context, op string) error {
	ctx, leave, err := b.begin(ctx, nil)
	if err != nil {
		return err
	}
	defer leave()
	return b.fail(ctx, op, false, b.setup(ctx))
}

func (b *Leases) setup(ctx context.Context) error {
	if b.set.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	if err := b.store.Setup(ctx); err != nil {
		return err
	}
	b.set.Store(true)
	return nil
}

// ask makes one call of the database, which is set up by the first. The call ends after askTime. The error is that for the
// caller where the database could not be set up, because nothing was asked then.
func (b *Leases) ask(ctx context.Context, call func(context.Context) error) error {
	if err := b.setup(ctx); err != nil {
		return b.fail(ctx, "setup", false, err)
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return call(ctx)
}

// fail returns the error for the caller.
func (b *Leases) fail(ctx context.Context, op string, mayHold bool, err error) error {
	known, err := connect.ErrorOf(ctx, b.life, err)
	if known {
		return err
	}
	return b.store.Unavailable(op, mayHold, err)
}

// session returns the session, or nil where it has ended.
func (b *Leases) session(id backend.SessionID) *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sessions[id]
}

// OpenSession creates or confirms a session. Errors: *InvalidError, also for a TTL that differs
// from the one it was opened with; ErrSessionLost; *UnavailableError; ErrClosed; ctx's cause.
func (b *Leases) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	ctx, leave, err := b.begin(ctx, req.Validate(b.cfg.Caps))
	if err != nil {
		return err
	}
	defer leave()
	s, fresh, err := b.admit(ctx, req)
	if err != nil {
		return err
	}
	_, err = await(ctx, s, s.opened)
	if err == nil && !fresh {
		_, err = s.renew(ctx)
	}
	if isClosed(s.over) && s.failed != nil {
		err = s.failed
	}
	return b.fail(ctx, opOpen, true, err)
}

// admit returns the session of the request, and whether it is new. A new one connects within ctx.
func (b *Leases) admit(ctx context.Context, req backend.SessionRequest) (*session, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sessions[req.ID]
	switch {
	case b.life.Err() != nil:
		return nil, false, backend.ErrClosed
	case b.dead.Has(req.ID):
		return nil, false, backend.ErrSessionLost
	case s != nil && s.ttl != req.TTL:
		return nil, false, &backend.InvalidError{Field: "ttl", Value: req.TTL.String(), Bound: s.ttl.String() + ", as it was opened"}
	case s != nil:
		return s, false, nil
	}
	s = newSession(b, req)
	b.sessions[req.ID] = s
	b.work.Go(func() { s.run(ctx) })
	return s, true, nil
}

// EndSession releases all that lives with the session. It succeeds for a session that has ended.
// Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) EndSession(ctx context.Context, id backend.SessionID) error {
	ctx, leave, err := b.begin(ctx, backend.ValidateSessionID(id))
	if err != nil {
		return err
	}
	defer leave()
	b.dead.Add(id) // first: it is not opened after this
	s := b.session(id)
	if s == nil {
		return nil
	}
	s.post(s.finish)
	_, err = await(ctx, s, s.over)
	return b.fail(ctx, "end session", true, err)
}

// Renew extends a session. The result has the outcome. Errors: *InvalidError, ErrUnsupported,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	ctx, leave, err := b.begin(ctx, req.Validate(b.cfg.Caps))
	if err != nil {
		return backend.RenewResult{}, err
	}
	defer leave()
	if req.Session == "" {
		return backend.RenewResult{}, nil
	}
	s := b.session(req.Session)
	if s == nil {
		return backend.RenewResult{SessionLost: true}, nil
	}
	lost, err := s.renew(ctx)
	switch {
	case errors.Is(err, backend.ErrSessionLost) && !backend.IsCause(ctx, err):
		return backend.RenewResult{SessionLost: true}, nil
	case err != nil:
		return backend.RenewResult{}, b.fail(ctx, "renew", true, err)
	}
	return backend.RenewResult{Lost: lost}, nil
}
