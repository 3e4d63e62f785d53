package zklock_test

import (
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// losses collects the losses that a session reports.
func losses() (chan backend.Loss, func(backend.Loss)) {
	told := make(chan backend.Loss, 1000)
	return told, func(l backend.Loss) { told <- l }
}

// TestBreakWhileHoldersLeave: a break reads each of many holders once, however many of them leave meanwhile. Otherwise
// more would leave while it reads again, until none are left.
func TestBreakWhileHoldersLeave(t *testing.T) {
	t.Parallel()
	const readers, perLeft = 500, 10
	server := testserver.StartZooKeeper(t, 1)[0]
	b, other := closing(t, server), closing(t, server)
	id := leasetest.Session(t, b, 5*time.Minute, nil)
	reqs := make([]backend.AcquireRequest, readers)
	var all sync.WaitGroup
	for i := range reqs {
		reqs[i] = leasetest.Ask("n", id)
		reqs[i].Mode = backend.Shared
		all.Go(func() {
			if _, err := b.Acquire(leasetest.Within(t), reqs[i]); err != nil {
				t.Errorf("acquire: %v", err)
			}
		})
	}
	all.Wait()
	broken, left := make(chan struct{}), 0
	all.Go(func() {
		for left < readers && retry.Until(10*time.Millisecond, broken, nil) {
			_ = b.Release(t.Context(), backend.ReleaseRequest{Name: "n", Lease: reqs[left].Lease, Session: id}) // it may be broken
			left++
		}
	})
	before := server.Count("zk_packets_received")
	_, err := other.Break(leasetest.Within(t), backend.BreakRequest{Name: "n", Reason: "stuck"})
	sent := server.Count("zk_packets_received") - before
	close(broken)
	all.Wait()
	if most := 2*readers + perLeft*left; err != nil || sent > most {
		t.Errorf("%d requests while %d left, of at most %d: %v", sent, left, most, err)
	}
}
