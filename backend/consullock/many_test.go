package consullock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestManyLocks: one process waits for more locks than Consul accepts connections from one address.
// Nothing fails, not even the renewals, on which all leases depend.
func TestManyLocks(t *testing.T) {
	t.Parallel()
	const locks = testserver.ConsulConnections * 3 / 2
	server := testserver.StartConsulTight(t)
	b, other := closing(t, server.Addr()), closing(t, server.Addr())
	id, theirs := session(t, b, nil), session(t, other, nil)
	held := make([]backend.AcquireRequest, locks)
	for i := range held {
		held[i] = leasetest.Ask(fmt.Sprintf("n/%d", i), theirs)
		leasetest.Take(t, other, held[i])
	}
	released := make([]atomic.Int64, locks) // when, in nanoseconds
	stop := make(chan struct{})
	var renewals, waiting sync.WaitGroup
	renewals.Go(func() {
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
			}
			if res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id}); err != nil || res.SessionLost {
				t.Errorf("renewal: %+v, %v", res, err)
				return
			}
		}
	})
	for i := range held {
		waiting.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*leasetest.Patience)
			defer cancel()
			req := leasetest.Ask(held[i].Name, id)
			g, err := b.Acquire(ctx, req)
			// A timer that is due just then may be faster than the query.
			if late := time.Since(time.Unix(0, released[i].Load())); err != nil || g.ByTimer && late > 20*time.Second {
				t.Errorf("wait for %q: %+v, %v, %s after the release", req.Name, g, err, late)
			}
		})
	}
	for i := range held {
		leasetest.InQueue(t, other, held[i].Name, 1)
	}
	start := time.Now()
	for i := range held {
		released[i].Store(time.Now().UnixNano())
		leasetest.Give(t, other, held[i])
	}
	waiting.Wait()
	t.Logf("%d hand-overs took %s", locks, time.Since(start))
	close(stop)
	renewals.Wait()
}

// TestJoinsTheSharedQuery: the lock becomes free just when a caller starts to wait for it, in a process
// that waits for many others: no waiter is forgotten until the timer.
func TestJoinsTheSharedQuery(t *testing.T) {
	t.Parallel()
	const others, rounds = 40, 200
	server := testserver.StartConsulTight(t)
	b, other := closing(t, server.Addr()), closing(t, server.Addr())
	id, theirs := session(t, b, nil), session(t, other, nil)
	ctx, leave := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for i := range others {
		req := leasetest.Ask(fmt.Sprintf("other/%d", i), theirs)
		leasetest.Take(t, other, req)
		req.Lease, req.Session = backend.NewLeaseID(), id
		waiting.Go(func() {
			if g, err := b.Acquire(ctx, req); !errors.Is(err, context.Canceled) {
				t.Errorf("%q is held: %+v, %v", req.Name, g, err)
			}
		})
		leasetest.InQueue(t, other, req.Name, 1)
	}
	for i := range rounds {
		held, req := leasetest.Ask("n", theirs), leasetest.Ask("n", id)
		leasetest.Take(t, other, held)
		var gives sync.WaitGroup
		gives.Go(func() {
			time.Sleep(time.Duration(i%20) * 100 * time.Microsecond)
			leasetest.Give(t, other, held)
		})
		g, err := b.Acquire(leasetest.Within(t), req)
		gives.Wait()
		if err != nil || g.ByTimer {
			t.Fatalf("round %d: %+v, %v", i, g, err)
		}
		leasetest.Give(t, b, req)
	}
	leave()
	waiting.Wait()
}
