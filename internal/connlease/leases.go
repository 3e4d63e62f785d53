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
)

// Config is the configuration of Leases.
type Config struct {
	// Store is the database. Required.
	Store Store
	// Caps are the capabilities of the backend.
	Caps backend.Capabilities
	// Wakes: a request refused with Try.Queue set is woken when the lock may be free.
	Wakes bool
	// Pause returns how long a session with waiters rests before it tries again, given for how
	// long nothing has changed. Required.
	Pause func(still time.Duration) time.Duration
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
	work sync.WaitGroup          // the goroutines
	gate chan struct{}           // has room for one: the caller that sets up
	set  atomic.Bool             // the set-up succeeded

	mu       sync.Mutex // guards what follows
	sessions map[backend.SessionID]*session
	dead     *lockstate.Ended[backend.SessionID] // that have ended

	closing sync.Once
}

// remembered is how long what ended, or was abandoned, is kept from coming back: longer than a
// late request can be in transit.
const remembered = 10 * time.Minute

// New returns Leases. It sends nothing. The caller must close them.
func New(cfg Config) *Leases {
	b := &Leases{
		cfg: cfg, store: bounded{cfg.Store}, gate: make(chan struct{}, 1),
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
	b.closing.Do(func() {
		b.mu.Lock()
		b.end(backend.ErrClosed) // no session begins after this
		b.mu.Unlock()
		b.work.Wait()
	})
}

const (
	opOpen    = "open session"
	opEnd     = "end session"
	opRenew   = "renew"
	opAcquire = "acquire"
	opRelease = "release"
	opInspect = "inspect"
	opList    = "list"
	opBreak   = "break"
)

// enter begins every call. invalid is what is wrong with its arguments. The context that it returns
// also ends with Close. Errors: invalid; ErrClosed; ctx's cause; those of Store.Setup.
func (b *Leases) enter(ctx context.Context, op string, invalid error) (context.Context, func(), error) {
	if invalid != nil {
		return nil, nil, invalid
	}
	ctx, leave, err := backend.Begin(ctx, b.life)
	if err != nil {
		return nil, nil, err
	}
	if err := b.Ready(ctx, op); err != nil {
		leave()
		return nil, nil, err
	}
	return ctx, leave, nil
}

// Ready makes sure that Store.Setup has succeeded once. Errors: ErrClosed; ctx's cause, in a
// *backend.UnavailableError; those of Store.Setup.
func (b *Leases) Ready(ctx context.Context, op string) error {
	if b.life.Err() != nil {
		return backend.ErrClosed
	}
	if b.set.Load() {
		return nil
	}
	select {
	case b.gate <- struct{}{}:
	case <-ctx.Done():
		return b.fail(ctx, op, false, context.Cause(ctx))
	}
	defer func() { <-b.gate }()
	if b.set.Load() {
		return nil
	}
	if err := b.store.Setup(ctx); err != nil {
		return b.fail(ctx, op, false, err)
	}
	b.set.Store(true)
	return nil
}

// fail returns the error for the caller.
func (b *Leases) fail(ctx context.Context, op string, mayHold bool, err error) error {
	known, err := connect.ErrorOf(ctx, b.life, err)
	if known {
		return err
	}
	return b.store.Unavailable(op, mayHold, err)
}

// session returns a live session.
func (b *Leases) session(id backend.SessionID) (*session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.sessions[id]
	if !ok || !isClosed(s.opened) || s.err != nil || isClosed(s.over) {
		return nil, backend.ErrSessionLost
	}
	return s, nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// closed waits until the channel is closed. The error is ctx's cause.
func closed(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return connect.Cause(ctx, ctx.Err())
	}
}

// OpenSession creates or confirms a session. Errors: *InvalidError, also for a TTL that differs
// from the one it was opened with; ErrSessionLost; *UnavailableError; ErrClosed; ctx's cause.
func (b *Leases) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	ctx, leave, err := b.enter(ctx, opOpen, req.Validate(b.cfg.Caps))
	if err != nil {
		return err
	}
	defer leave()
	s, fresh, err := b.admit(req)
	if err != nil {
		return err
	}
	if fresh {
		b.open(ctx, s)
		return s.err
	}
	if err := closed(ctx, s.opened); err != nil {
		return b.fail(ctx, opOpen, true, err)
	}
	switch {
	case s.err != nil:
		return s.err
	case s.ttl != req.TTL:
		return &backend.InvalidError{Field: "ttl", Value: req.TTL.String(), Bound: s.ttl.String() + ", as it was opened"}
	}
	return b.fail(ctx, opOpen, true, s.renew(ctx))
}

// admit returns the session of the request, and whether it is new. The caller must open a new
// one.
func (b *Leases) admit(req backend.SessionRequest) (*session, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Err() != nil {
		return nil, false, backend.ErrClosed
	}
	if b.dead.Has(req.ID) {
		return nil, false, backend.ErrSessionLost
	}
	if s, ok := b.sessions[req.ID]; ok {
		return s, false, nil
	}
	s := newSession(b, req)
	b.sessions[req.ID] = s
	return s, true, nil
}

// open connects. A failure leaves nothing behind: the session may be opened again. The connection
// is not tied to ctx.
func (b *Leases) open(ctx context.Context, s *session) {
	defer close(s.opened)
	conn, err := b.store.Connect(ctx, s.id, s.ttl, s.hear)
	s.conn = conn
	s.deadline = time.Now().Add(s.ttl)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil && b.life.Err() == nil {
		b.work.Go(s.run)
		return
	}
	delete(b.sessions, s.id)
	if err == nil {
		b.work.Go(conn.Close)
		err = backend.ErrClosed
	}
	s.err = b.fail(ctx, opOpen, true, err)
}

// EndSession releases all that lives with the session. It succeeds for a session that has ended.
// Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) EndSession(ctx context.Context, id backend.SessionID) error {
	if err := backend.ValidateSessionID(id); err != nil {
		return err
	}
	if b.life.Err() != nil {
		return backend.ErrClosed
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	b.mu.Lock()
	s := b.sessions[id]
	b.dead.Add(id)
	b.mu.Unlock()
	if s == nil {
		return nil
	}
	err := closed(ctx, s.opened)
	if err == nil && s.err == nil { // otherwise it was never opened
		s.finish()
		err = closed(ctx, s.over)
	}
	return b.fail(ctx, opEnd, true, err)
}

// Renew extends a session. The result has the outcome. Errors: *InvalidError, ErrUnsupported,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	ctx, leave, err := b.enter(ctx, opRenew, req.Validate(b.cfg.Caps))
	if err != nil {
		return backend.RenewResult{}, err
	}
	defer leave()
	if req.Session == "" {
		return backend.RenewResult{}, nil
	}
	s, err := b.session(req.Session)
	if err == nil {
		err = s.renew(ctx)
	}
	switch {
	case errors.Is(err, backend.ErrSessionLost) && !backend.IsCause(ctx, err):
		return backend.RenewResult{SessionLost: true}, nil
	case err != nil:
		return backend.RenewResult{}, b.fail(ctx, opRenew, true, err)
	}
	return backend.RenewResult{Lost: s.losses()}, nil
}
