package leasetest

import (
	"context"
	"errors"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
)

// ReleasedDuringTheCreate (C5, C7): a lease is released while the request that makes its entry is
// under way, so the release finds nothing. The acquire does not succeed, and the entry does not keep
// the lock. hold delays the next entry of b; it returns a function that reports whether a request is
// delayed, and one that lets it pass.
func ReleasedDuringTheCreate(t *testing.T, b, other backend.Backend, hold func(backend.SessionID) (func() bool, func())) {
	t.Helper()
	id := Session(t, b, Long, nil)
	req := Ask("n", id)
	delayed, pass := hold(id)
	got := Start(t, b, req)
	Eventually(t, "the create is under way", delayed)
	give := backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: id}
	if err := b.Release(Within(t), give); !errors.Is(err, backend.ErrLost) {
		t.Errorf("a release before the entry exists: %v; want ErrLost", err)
	}
	if _, err := b.Acquire(Within(t), req); !errors.Is(err, backend.ErrLost) {
		t.Errorf("an acquire after the release: %v; want ErrLost", err)
	}
	pass()
	if a := <-got; !errors.Is(a.Err, backend.ErrLost) {
		t.Errorf("%+v; want ErrLost", a)
	}
	isFree(t, other, "n")
}

// isFree acquires the lock, well before the session of an earlier test step ends by itself.
func isFree(t *testing.T, b backend.Backend, name string) {
	t.Helper()
	req := Ask(name, Session(t, b, Long, nil))
	if _, err := Insist(t, func(ctx context.Context) (backend.Grant, error) { return b.Acquire(ctx, req) }); err != nil {
		t.Errorf("the lock is not free: %v", err)
	}
}
