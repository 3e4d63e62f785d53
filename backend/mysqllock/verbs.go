package mysqllock

import (
	"context"

	"github.com/holdfast-io/holdfast/backend"
)

// OpenSession creates or confirms a session, in one round trip. Errors: *InvalidError;
// ErrSessionLost for an ID that has ended; *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	return b.leases.OpenSession(ctx, req)
}

// EndSession releases all that lives with the session, in one transaction. It succeeds for a
// session that has ended. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) EndSession(ctx context.Context, id backend.SessionID) error {
	return b.leases.EndSession(ctx, id)
}

// Acquire acquires the lock, or waits in the queue for it when req.Wait is set. When ctx ends
// during the wait, the place in the queue stays. Errors: *InvalidError, *LimitError, *HeldError,
// ErrLost, ErrSessionLost, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	return b.leases.Acquire(ctx, req)
}

// Renew extends a session and timed leases, in one transaction and one round trip. The result has
// the outcome for each. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	return b.leases.Renew(ctx, req)
}

// Release releases a lease, or its place in the queue. With req.Abandon the lease can never be
// granted afterwards. Errors: ErrLost where there is no such lease, unless req.Abandon is set;
// *InvalidError; *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	return b.leases.Release(ctx, req)
}

// Inspect returns the holders and the waiters of the lock. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	return b.leases.Inspect(ctx, name)
}

// List returns the locks that have holders or waiters, by name. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	return b.leases.List(ctx, req)
}

// Break ends all leases that hold the lock. Errors: *InvalidError, *UnavailableError, ErrClosed,
// ctx's cause.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	return b.leases.Break(ctx, req)
}

// Watch is not supported: the servers have no notifications of changes.
func (b *Backend) Watch(context.Context, backend.WatchRequest, func(backend.Event)) error {
	return errNoWatch
}
