package mysqllock

import (
	"context"

	"github.com/holdfast-io/holdfast/backend"
)

// OpenSession makes a session or confirms it, in one statement. Errors: *InvalidError;
// ErrSessionLost for an ID that has ended; *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	return b.leases.OpenSession(ctx, req)
}

// EndSession gives back all that lives with the session, in one transaction. A session
// that is gone is success. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's
// cause.
func (b *Backend) EndSession(ctx context.Context, id backend.SessionID) error {
	return b.leases.EndSession(ctx, id)
}

// Acquire takes the lock, or waits in line for it when req.Wait is set. When ctx ends
// meanwhile the place in line stays. Errors: *InvalidError, *LimitError, *HeldError,
// ErrLost, ErrSessionLost, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	return b.leases.Acquire(ctx, req)
}

// Renew extends a session and timed leases, in one transaction and one round trip.
// Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause. What became of each
// is in the result.
func (b *Backend) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	return b.leases.Renew(ctx, req)
}

// Release gives a lease back, or its place in line. With req.Abandon it can never be
// granted afterwards. Errors: ErrLost where there is no such lease, unless req.Abandon
// is set; *InvalidError; *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	return b.leases.Release(ctx, req)
}

// Inspect tells who holds the lock and who waits. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	return b.leases.Inspect(ctx, name)
}

// List tells the locks that are held or waited for, by name. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	return b.leases.List(ctx, req)
}

// Break takes the lock from all its holders. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	return b.leases.Break(ctx, req)
}

// Watch is not supported: the servers tell nobody of changes.
func (b *Backend) Watch(context.Context, backend.WatchRequest, func(backend.Event)) error {
	return errNoWatch
}
