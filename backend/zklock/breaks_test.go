package zklock_test

import (
	"strconv"
	"strings"
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

func awaitLoss(t *testing.T, told <-chan backend.Loss) backend.Loss {
	t.Helper()
	select {
	case l := <-told:
		return l
	case <-time.After(leasetest.Patience):
		t.Fatal("the loss was not told")
		return backend.Loss{}
	}
}

// TestManyAreBroken: all that one break takes from a session is reported, even if it is more than
// the session's notices hold.
func TestManyAreBroken(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	b, other := closing(t, server), closing(t, server)
	told, tell := losses()
	id := leasetest.Session(t, b, 5*time.Minute, tell)
	const readers = 300 // without the push, the session finds those whose notices made room in 25 s
	had := make(chan backend.LeaseID, readers)
	for range readers {
		req := leasetest.Ask("n", id)
		req.Mode = backend.Shared
		go func() {
			if _, err := b.Acquire(leasetest.Within(t), req); err != nil {
				t.Errorf("acquire: %v", err)
			}
			had <- req.Lease
		}()
	}
	out := make(map[backend.LeaseID]bool)
	for range readers {
		out[<-had] = true
	}
	res, err := other.Break(leasetest.Within(t), backend.BreakRequest{Name: "n", Reason: "stuck"})
	if err != nil || len(res.Broken) != readers {
		t.Fatalf("broke %d of %d: %v", len(res.Broken), readers, err)
	}
	broken := time.Now()
	for len(out) > 0 {
		l := awaitLoss(t, told)
		if l.Cause != backend.CauseBroken && l.Cause != backend.CauseGone {
			t.Errorf("told %+v", l)
		}
		delete(out, l.Lease)
	}
	if took := time.Since(broken); took > 15*time.Second {
		t.Errorf("all were told after %s", took)
	}
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

// TestLongReasons: a session can be notified of more breaks than fit into one request.
func TestLongReasons(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	b, other := closing(t, server), closing(t, server)
	told, tell := losses()
	id := leasetest.Session(t, b, 5*time.Minute, tell)
	const breaks = 50
	for n := range breaks {
		req := leasetest.Ask(strconv.Itoa(n), id)
		leasetest.Take(t, b, req)
		// Each of these takes six bytes in JSON.
		if _, err := other.Break(leasetest.Within(t), backend.BreakRequest{Name: req.Name, Reason: strings.Repeat("<", 1000)}); err != nil {
			t.Fatalf("break %d: %v", n, err)
		}
		if l := awaitLoss(t, told); l.Lease != req.Lease {
			t.Fatalf("break %d: told %+v", n, l)
		}
	}
}
