package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// B10: a lease counts from before the request was sent. However late the answer comes, the
// count on this side began no later than the one on the server.
func TestLeaseCountsFromTheQuestion(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const late = 400 * time.Millisecond
	sideBySide(t, networks(), func(t *testing.T, _ string, start func(*testing.T) reachable) { //nolint:thelper // it is the test
		n := start(t)
		proxy := chaos.Start(t, n.addr)
		b := n.open(t, proxy.Addr())
		caps := b.Capabilities()
		req := backend.AcquireRequest{Name: t.Name(), Lease: backend.NewLeaseID(), Timed: caps.Timed}
		if caps.Timed {
			req.TTL = leasetest.Patience
		} else {
			req.Session = leasetest.Session(t, b, leasetest.Patience, nil)
		}
		// The connection is established when the delay begins.
		_, err := leasetest.Insist(t, func(ctx context.Context) (backend.LockInfo, error) { return b.Inspect(ctx, t.Name()) })
		if err != nil {
			t.Fatal(err)
		}
		proxy.Delay(chaos.Replies, late, 0)
		g, err := leasetest.Insist(t, func(ctx context.Context) (backend.Grant, error) { return b.Acquire(ctx, req) })
		if err != nil {
			t.Fatal(err)
		}
		if age := time.Since(g.Asked); age < late {
			t.Errorf("the lease counts from %s ago, and the answer took %s", age, late)
		}
	})
}
