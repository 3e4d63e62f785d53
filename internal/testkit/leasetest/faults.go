package leasetest

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// ServerGone (C12): the server is gone, behind the proxy. A call ends with its context, and
// reports whether the lease may be held; Close returns.
func ServerGone(t *testing.T, b backend.Backend, proxy Proxy) {
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

// Proxy is what these tests need of package chaos.
type Proxy interface {
	LoseReply(match func(piece []byte) bool) <-chan struct{}
	Reset()
	BlackHole()
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

// LostIsFinal (C6, C10): the reply to an acquire is lost on the way of b, which is through the
// proxy, and an operator breaks the lease. Once the loss was reported, the same lease is not
// granted again: a second break of it would not be reported.
func LostIsFinal(t *testing.T, b, other backend.Backend, proxy Proxy) {
	t.Helper()
	told := make(chan backend.Loss, 10)
	id := Session(t, b, time.Minute, func(l backend.Loss) { told <- l })
	Take(t, b, Ask("warm", id)) // so that what the store prepares for a session exists
	req := Ask("n", id)
	lost := proxy.LoseReply(func(piece []byte) bool { return bytes.Contains(piece, []byte(req.Lease)) })
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		_, err := b.Acquire(ctx, req)
		answered <- err
	}()
	isLost(t, lost, answered)
	Eventually(t, "the lease is held", func() bool {
		info, err := other.Inspect(Within(t), "n")
		return err == nil && len(info.Holders) == 1
	})
	cancel()
	if err := <-answered; !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("acquire without a reply: %v", err)
	}
	if res, err := other.Break(Within(t), backend.BreakRequest{Name: "n"}); err != nil || len(res.Broken) != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	proxy.Reset()
	select {
	case l := <-told:
		if l.Lease != req.Lease {
			t.Fatalf("told %+v", l)
		}
	case <-time.After(Patience):
		t.Fatal("the loss was not told")
	}
	for range 3 {
		if g, err := b.Acquire(Within(t), req); !errors.Is(err, backend.ErrLost) {
			t.Fatalf("the lease that was reported as lost: %+v, %v; want ErrLost", g, err)
		}
	}
	Take(t, other, Ask("n", Session(t, other, time.Minute, nil)))
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
