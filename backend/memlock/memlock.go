package memlock

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Backend is a connection to a Store. It implements backend.Backend. Its methods are safe for
// concurrent use.
type Backend struct {
	store  *Store
	done   chan struct{} // closed by Close
	closed bool          // guarded by Store.mu
}

var _ backend.Backend = (*Backend)(nil)

const name = "memory"

// Capabilities reports that the backend can do everything, except survive the process.
func (b *Backend) Capabilities() backend.Capabilities {
	caps := lockstate.Capabilities(name)
	caps.Durable, caps.TokenKind, caps.MinTTL = false, "counter", time.Millisecond
	return caps
}

// enter begins a call. It returns an error if the input is invalid, which is that error, if b is closed
// or if the call's context has ended. Otherwise the store is locked, and the call must end with
// Store.leave.
func (b *Backend) enter(ctx context.Context, invalid error) error {
	if invalid != nil {
		return invalid
	}
	ended := ctx.Err() != nil // the context may be that of a lock, with a mutex of its own
	b.store.enter()
	if !b.closed && !ended {
		return nil
	}
	defer b.store.leave()
	if b.closed {
		return backend.ErrClosed
	}
	return context.Cause(ctx)
}

// OpenSession creates a session or confirms it. Errors: *InvalidError; ErrSessionLost for an
// ID that has ended; ErrClosed; ctx's cause.
func (b *Backend) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	if err := b.enter(ctx, req.Validate(b.Capabilities())); err != nil {
		return err
	}
	defer b.store.leave()
	return b.store.openSession(b, &req)
}

// EndSession releases everything that lives with the session. It succeeds if the session does
// not exist. Errors: *InvalidError, ErrClosed, ctx's cause.
func (b *Backend) EndSession(ctx context.Context, id backend.SessionID) error {
	if err := b.enter(ctx, backend.ValidateSessionID(id)); err != nil {
		return err
	}
	defer b.store.leave()
	if x, ok := b.store.sessions[id]; ok {
		b.store.endSession(x, b, backend.EventReleased, backend.CauseSession)
	}
	return nil
}

// Acquire takes the lock, or waits for it in the queue when req.Wait is set. If ctx ends
// during the wait, the place in the queue stays. Errors: *InvalidError, *LimitError,
// *HeldError, ErrLost, ErrSessionLost, ErrClosed, ctx's cause.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	l, grant, err := b.acquire(ctx, &req)
	if l == nil || err != nil {
		return grant, err
	}
	select {
	case <-l.Own.left:
	case <-ctx.Done():
		return backend.Grant{}, context.Cause(ctx)
	case <-b.done:
		return backend.Grant{}, backend.ErrClosed
	}
	b.store.enter()
	defer b.store.leave()
	return b.store.answer(l, req.Session)
}

// acquire returns the grant, or the lease that is queued for it.
func (b *Backend) acquire(ctx context.Context, req *backend.AcquireRequest) (*lease, backend.Grant, error) {
	if err := b.enter(ctx, req.Validate(b.Capabilities())); err != nil {
		return nil, backend.Grant{}, err
	}
	defer b.store.leave()
	l, err := lockstate.Acquire(b.store.rules(), b.store.lock(req.Name), req)
	if err != nil || l.State == lockstate.Waiting {
		return l, backend.Grant{}, err
	}
	grant, err := b.store.answer(l, req.Session)
	return nil, grant, err
}

// Renew extends a session and timed leases. The outcome of each is in the result. Errors:
// *InvalidError, ErrClosed, ctx's cause.
func (b *Backend) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if err := b.enter(ctx, req.Validate(b.Capabilities())); err != nil {
		return backend.RenewResult{}, err
	}
	defer b.store.leave()
	var res backend.RenewResult
	if req.Session != "" {
		lost, ok := b.store.renewSession(req.Session)
		res.Lost, res.SessionLost = lost, !ok
	}
	if len(req.Leases) > 0 {
		res.Leases = make([]backend.Renewal, len(req.Leases))
	}
	for i, r := range req.Leases {
		res.Leases[i] = lockstate.Renew(b.store.rules(), b.store.lock(r.Name).Find(r.Lease), r.TTL)
	}
	return res, nil
}

// Release releases a lease, or its place in the queue. With req.Abandon it can never be
// granted afterwards. Errors: ErrLost if there is no such lease, unless req.Abandon is set;
// *InvalidError; ErrClosed; ctx's cause.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if err := b.enter(ctx, req.Validate()); err != nil {
		return err
	}
	defer b.store.leave()
	return lockstate.Release(b.store.rules(), b.store.lock(req.Name), &req)
}

// Break takes the lock from its holders. Errors: *InvalidError, ErrClosed, ctx's
// cause.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	if err := b.enter(ctx, req.Validate()); err != nil {
		return backend.BreakResult{}, err
	}
	defer b.store.leave()
	return lockstate.Break(b.store.rules(), b.store.lock(req.Name), &req), nil
}

// Close makes the calls in progress, and all later ones, return ErrClosed. The leases stay in
// the store. Closing again does nothing. The error is always nil.
func (b *Backend) Close() error {
	b.store.enter()
	defer b.store.leave()
	if b.closed {
		return nil
	}
	b.closed = true
	close(b.done)
	b.store.opened--
	if b.store.opened == 0 {
		b.store.disarm()
	}
	return nil
}
