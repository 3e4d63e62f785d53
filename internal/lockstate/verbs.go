package lockstate

import (
	"context"
	"fmt"

	"github.com/holdfast-io/holdfast/backend"
)

// Verbs are the calls of backend.Backend that an engine answers for a store. A store embeds them.
type Verbs interface {
	OpenSession(ctx context.Context, req backend.SessionRequest) error
	EndSession(ctx context.Context, id backend.SessionID) error
	Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error)
	Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error)
	Release(ctx context.Context, req backend.ReleaseRequest) error
	Inspect(ctx context.Context, name string) (backend.LockInfo, error)
	List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error)
	Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error)
	Watch(ctx context.Context, req backend.WatchRequest, deliver func(backend.Event)) error
}

// NoEvents answers Watch for a store without events. life ends with the backend value. Errors: ErrUnsupported,
// *InvalidError, ErrClosed.
func NoEvents(life context.Context, req backend.WatchRequest) error {
	if err := backend.ValidatePrefix(req.Prefix); err != nil {
		return err
	}
	if life.Err() != nil {
		return backend.ErrClosed
	}
	return fmt.Errorf("watch: the store does not report changes: %w", backend.ErrUnsupported)
}
