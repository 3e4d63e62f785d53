package leasetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// ServerGone (C12): the server is gone, behind the proxy. A call ends with its context, and
// reports whether the lease may be held; Close returns.
func ServerGone(t *testing.T, b backend.Backend, proxy *chaos.Proxy) {
	t.Helper()
	id := Session(t, b, time.Minute, nil)
	Take(t, b, Ask("kept", id))
	waits := Start(t, b, Ask("kept", id))
	InQueue(t, b, "kept", 1)
	proxy.BlackHole()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second) // the request is sent in this time
	defer cancel()
	from := time.Now()
	_, err := b.Acquire(ctx, Ask("n", id))
	var away *backend.UnavailableError
	if !errors.As(err, &away) || !away.MayHold || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Acquire: %v", err)
	}
	_, err = b.Renew(ctx, backend.RenewRequest{Session: id})
	if !errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Renew: %v", err)
	}
	if took := time.Since(from); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	from = time.Now()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(from); took > 30*time.Second {
		t.Errorf("Close took %s", took)
	}
	if g := <-waits; !errors.Is(g.Err, backend.ErrClosed) {
		t.Errorf("the waiter: %v", g.Err)
	}
}

// isLost waits until a reply was lost, and fails the test if the call ends before, or is not sent.
func isLost(t *testing.T, lost <-chan struct{}, failed <-chan error) {
	t.Helper()
	select {
	case <-lost:
	case err := <-failed:
		t.Fatalf("it ended before its reply was lost: %v", err)
	case <-time.After(Patience):
		t.Fatal("nothing was sent")
	}
}

// Unsent waits until an Acquire of a backend whose server is gone says that it had no connection, so that it was not sent.
func Unsent(t *testing.T, b backend.Backend) {
	t.Helper()
	Eventually(t, "the error says that nothing was sent", func() bool {
		_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute})
		away, ok := errors.AsType[*backend.UnavailableError](err)
		if !ok {
			t.Fatal(err)
		}
		return !away.MayHold && connect.IsDial(err)
	})
}
