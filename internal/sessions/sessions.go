// Package sessions has the life of the sessions of a backend value, where a session belongs to the
// value that opened it: it is opened, renewed and ended through that value alone, which ends it when
// it was not renewed for its TTL. What a session is in the store, such as a connection or a key, is
// its Peer.
package sessions

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Peer is what a session is in the store.
type Peer interface {
	// Open makes it. When Open fails, Bury is called.
	Open(ctx context.Context) error
	// Run serves the session until its Life has ended. It calls Session.Expire when the session
	// must end.
	Run()
	// Renew makes it live for its TTL from a moment of the call on, and calls Session.Extend when
	// that is certain. ErrSessionLost: it has ended.
	Renew(ctx context.Context) error
	// End ends it. It is called after the session's Life has ended. If the outcome is unknown, it is
	// called again when the caller retries.
	End(ctx context.Context) error
	// Bury does what End does for a session that no caller ends, and reports whether it has ended.
	// When the backend is closed, it makes one more short attempt at most.
	Bury() bool
}

// Config describes a backend.
type Config[P Peer] struct {
	Caps backend.Capabilities
	// New returns the peer of a new session. It sends nothing.
	New func(*Session) P
	// Fail maps an error to the kinds of package backend. changes is set if the request may have
	// changed something.
	Fail func(ctx context.Context, op string, err error, changes bool) error
}

// Remembered is how long the ID of what has ended or was abandoned is remembered. No request under it
// arrives later than that.
const Remembered = 10 * time.Minute

const opOpen, opRenew, opEnd = "open session", "renew", "end session"

// Sessions are the sessions of one backend value. Its methods are safe for concurrent use.
type Sessions[P Peer] struct {
	cfg  Config[P]
	dead *lockstate.Ended[backend.SessionID] // their IDs are not opened again

	base context.Context         //nolint:containedctx // it is what Close ends
	end  context.CancelCauseFunc // ends base

	mu      sync.Mutex // guards the fields below
	closed  bool
	live    map[backend.SessionID]*member[P]
	ending  map[backend.SessionID]*member[P] // ended here; in the store they may live on until they expire there
	work    sync.WaitGroup
	closing sync.Once
}

type member[P Peer] struct {
	*Session

	peer P
}

// New returns the sessions of a backend that has none yet.
func New[P Peer](cfg Config[P]) *Sessions[P] {
	r := &Sessions[P]{
		cfg: cfg, dead: lockstate.NewEnded[backend.SessionID](Remembered),
		live: make(map[backend.SessionID]*member[P]), ending: make(map[backend.SessionID]*member[P]),
	}
	r.base, r.end = context.WithCancelCause(context.Background())
	return r
}

// Base returns a context that Close ends, with backend.ErrClosed as its cause.
func (r *Sessions[P]) Base() context.Context { return r.base }

// Begin begins a call, unless its input is invalid. The context that it returns ends with ctx and with
// Close. The caller must call the function when the call has ended. Errors: invalid; ErrClosed; ctx's
// cause.
func (r *Sessions[P]) Begin(ctx context.Context, invalid error) (context.Context, func(), error) {
	if invalid != nil {
		return nil, nil, invalid
	}
	return backend.Begin(ctx, r.base)
}

// Go runs f in the background. Close waits for it. When the backend is closed, Go does nothing.
func (r *Sessions[P]) Go(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.work.Go(f)
	}
}

// Close ends the sessions, and waits for what runs in the background. A second Close does nothing.
func (r *Sessions[P]) Close() {
	r.closing.Do(func() {
		r.mu.Lock()
		r.closed = true
		all := slices.AppendSeq(slices.Collect(maps.Values(r.live)), maps.Values(r.ending))
		r.mu.Unlock()
		r.end(backend.ErrClosed)
		var ends sync.WaitGroup
		for _, m := range all {
			ends.Go(func() {
				<-m.opened
				if m.err == nil {
					m.finish()
					m.peer.Bury()
				}
			})
		}
		ends.Wait()
		r.work.Wait()
	})
}

// OpenSession opens a session, or confirms it. Errors: *InvalidError, also for a TTL that differs from the
// one it was opened with; ErrSessionLost; *UnavailableError; ErrClosed; ctx's cause.
func (r *Sessions[P]) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	ctx, done, err := r.Begin(ctx, req.Validate(r.cfg.Caps))
	if err != nil {
		return err
	}
	defer done()
	m, fresh, err := r.admit(req)
	if err != nil {
		return err
	}
	if fresh {
		r.open(ctx, m)
		return m.err
	}
	select {
	case <-m.opened:
	case <-ctx.Done():
		return r.cfg.Fail(ctx, opOpen, context.Cause(ctx), true)
	}
	switch {
	case m.err != nil:
		return m.err
	case m.TTL != req.TTL:
		return &backend.InvalidError{Field: "ttl", Value: req.TTL.String(), Bound: m.TTL.String() + ", as it was opened"}
	}
	return r.renew(ctx, m)
}

// admit returns the session of the request, and whether it is new: then the caller has to open it.
func (r *Sessions[P]) admit(req backend.SessionRequest) (*member[P], bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false, backend.ErrClosed
	}
	maps.DeleteFunc(r.ending, func(_ backend.SessionID, m *member[P]) bool { return m.Expired() })
	if r.ending[req.ID] != nil || r.dead.Has(req.ID) {
		return nil, false, backend.ErrSessionLost
	}
	if m, ok := r.live[req.ID]; ok {
		return m, false, nil
	}
	s := &Session{
		ID: req.ID, TTL: req.TTL, lost: req.Lost, lag: r.cfg.Caps.ExpiryLag, opened: make(chan struct{}), renewed: make(chan struct{}, 1),
	}
	s.Life, s.stop = context.WithCancel(context.Background())
	m := &member[P]{s, r.cfg.New(s)}
	s.onEnd, s.bury = func() { r.moveToDead(m) }, func() { r.Go(func() { r.buryMember(m) }) }
	r.live[req.ID] = m
	return m, true, nil
}

// open opens a new session. A failed attempt leaves nothing here: the session may be opened again.
func (r *Sessions[P]) open(ctx context.Context, m *member[P]) {
	defer close(m.opened)
	err := m.peer.Open(ctx)
	if err == nil {
		r.work.Go(m.peer.Run) // Close waits until the session is opened
		return
	}
	m.err = r.cfg.Fail(ctx, opOpen, err, true)
	if errors.Is(m.err, backend.ErrSessionLost) { // it was lost while it was opened
		m.err = &backend.UnavailableError{Backend: r.cfg.Caps.Name, Op: opOpen, MayHold: true, Err: err}
	}
	m.markEnded()
	r.mu.Lock()
	delete(r.live, m.ID)
	r.mu.Unlock()
	r.work.Go(func() { m.peer.Bury() })
}

// Get returns the peer of a session that is alive.
func (r *Sessions[P]) Get(id backend.SessionID) (P, error) {
	m, err := r.get(id)
	if err != nil {
		var none P
		return none, err
	}
	return m.peer, nil
}

func (r *Sessions[P]) get(id backend.SessionID) (*member[P], error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, backend.ErrClosed
	}
	m, ok := r.live[id]
	if !ok || !m.isOpen() {
		return nil, backend.ErrSessionLost
	}
	return m, nil
}

// Find returns the peer of the session if that knows something, or else of any session that does, or
// else of the session if it is alive. The second result is false if there is none.
func (r *Sessions[P]) Find(id backend.SessionID, knows func(P) bool) (P, bool) {
	p, err := r.Get(id)
	if err == nil && knows(p) {
		return p, true
	}
	r.mu.Lock()
	all := slices.Collect(maps.Values(r.live))
	r.mu.Unlock() // knows has a mutex of its own
	for _, m := range all {
		if m.isOpen() && knows(m.peer) {
			return m.peer, true
		}
	}
	return p, err == nil
}

// Renew extends a session. The result reports what became of it. Errors: ErrUnsupported for timed
// leases; *InvalidError; *UnavailableError; ErrClosed; ctx's cause.
func (r *Sessions[P]) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	ctx, done, err := r.Begin(ctx, req.Validate(r.cfg.Caps))
	if err != nil {
		return backend.RenewResult{}, err
	}
	defer done()
	if req.Session == "" {
		return backend.RenewResult{}, nil
	}
	m, err := r.get(req.Session)
	if err == nil {
		err = r.renew(ctx, m)
	}
	switch {
	case errors.Is(err, backend.ErrSessionLost) && !backend.IsCause(ctx, err):
		return backend.RenewResult{SessionLost: true}, nil
	case err != nil:
		return backend.RenewResult{}, err
	}
	return backend.RenewResult{Lost: m.reports()}, nil
}

func (r *Sessions[P]) renew(ctx context.Context, m *member[P]) error {
	if m.Left() <= 0 {
		return backend.ErrSessionLost
	}
	return r.cfg.Fail(ctx, opRenew, m.peer.Renew(ctx), true)
}

// EndSession ends a session, and everything that lives with it. If the session has ended already, it
// succeeds. Errors: *InvalidError; *UnavailableError if the store has not confirmed the end: another
// call tries again; ErrClosed; ctx's cause.
func (r *Sessions[P]) EndSession(ctx context.Context, id backend.SessionID) error {
	ctx, done, err := r.Begin(ctx, backend.ValidateSessionID(id))
	if err != nil {
		return err
	}
	defer done()
	m, err := r.refuse(id)
	if m == nil {
		return err
	}
	select {
	case <-m.opened:
	case <-ctx.Done():
		return r.cfg.Fail(ctx, opEnd, context.Cause(ctx), true)
	}
	if m.err != nil {
		return nil // it was never opened
	}
	m.finish()
	if err := m.peer.End(ctx); err != nil {
		m.bury() // even if no caller retries
		return r.cfg.Fail(ctx, opEnd, err, true)
	}
	r.forget(m)
	return nil
}

// refuse records that no session of that ID may be opened any more. It returns the session that lives
// or has not ended in the store yet; nil: there is none.
func (r *Sessions[P]) refuse(id backend.SessionID) (*member[P], error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, backend.ErrClosed
	}
	r.dead.Add(id)
	return cmp.Or(r.live[id], r.ending[id]), nil
}

// moveToDead records that a session has ended here.
func (r *Sessions[P]) moveToDead(m *member[P]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead.Add(m.ID)
	r.ending[m.ID] = m
	delete(r.live, m.ID)
}

// buryMember ends a session in the store that has ended here.
func (r *Sessions[P]) buryMember(m *member[P]) {
	if m.peer.Bury() {
		r.forget(m)
	}
}

// forget records that a session has ended in the store.
func (r *Sessions[P]) forget(m *member[P]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending[m.ID] == m {
		delete(r.ending, m.ID)
	}
}
