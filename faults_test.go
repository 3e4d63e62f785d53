package holdfast_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

// faults is a backend with a fault before or after any call. The lock itself is the reference
// backend; the tests check how the client handles the faults.
type faults struct {
	backend.Backend
	caps      func(*backend.Capabilities)
	open      atomic.Pointer[func(context.Context, func() error) error]
	acquire   atomic.Pointer[func(context.Context, func() (backend.Grant, error)) (backend.Grant, error)]
	renew     atomic.Pointer[func(context.Context, func() (backend.RenewResult, error)) (backend.RenewResult, error)]
	release   atomic.Pointer[func(context.Context, func() error) error]
	acquires  atomic.Int64
	renewals  atomic.Int64
	releases  atomic.Int64
	lastAsked atomic.Pointer[backend.AcquireRequest]
}

func (f *faults) Capabilities() backend.Capabilities {
	c := f.Backend.Capabilities()
	if f.caps != nil {
		f.caps(&c)
	}
	return c
}

func (f *faults) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	call := func() error { return f.Backend.OpenSession(ctx, req) }
	if fault := f.open.Load(); fault != nil {
		return (*fault)(ctx, call)
	}
	return call()
}

func (f *faults) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	f.acquires.Add(1)
	f.lastAsked.Store(&req)
	call := func() (backend.Grant, error) { return f.Backend.Acquire(ctx, req) }
	if fault := f.acquire.Load(); fault != nil {
		return (*fault)(ctx, call)
	}
	return call()
}

func (f *faults) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	f.renewals.Add(1)
	call := func() (backend.RenewResult, error) { return f.Backend.Renew(ctx, req) }
	if fault := f.renew.Load(); fault != nil {
		return (*fault)(ctx, call)
	}
	return call()
}

func (f *faults) Release(ctx context.Context, req backend.ReleaseRequest) error {
	f.releases.Add(1)
	call := func() error { return f.Backend.Release(ctx, req) }
	if fault := f.release.Load(); fault != nil {
		return (*fault)(ctx, call)
	}
	return call()
}

var errWire = errors.New("the wire was cut")

func unavailable(mayHold bool) error {
	return &backend.UnavailableError{Backend: "memory", Op: "test", MayHold: mayHold, Err: errWire}
}

// hangRenew leaves every renewal without an answer.
func (f *faults) hangRenew() {
	hang := func(ctx context.Context, _ func() (backend.RenewResult, error)) (backend.RenewResult, error) {
		<-ctx.Done()
		return backend.RenewResult{}, unavailable(true)
	}
	f.renew.Store(&hang)
}

func newFaults(t *testing.T) (*faults, *memlock.Store) {
	t.Helper()
	store := memlock.NewStore()
	f := &faults{Backend: openStore(t, store)}
	return f, store
}

// openStore returns another backend value on the store, as another process would have.
func openStore(t *testing.T, store *memlock.Store) backend.Backend {
	t.Helper()
	b := store.Open()
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// newClient returns a client that is closed, with its backend, when the test ends.
func newClient(t *testing.T, b backend.Backend, cfg holdfast.Config) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("close: %v", err)
		}
	})
	return c
}
