package zklock_test

import (
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// TestToldAfterTheNextGrant: the loss of an entry is reported when the lease has another entry by
// then. That one goes, too.
func TestToldAfterTheNextGrant(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	b, other := closing(t, server), closing(t, server)
	id := leasetest.Session(t, b, leasetest.Long, nil)
	req := leasetest.Ask("n", id)
	leasetest.Take(t, b, req)
	b.Tell(id, req.Lease, backend.CauseBroken)
	leasetest.Take(t, other, leasetest.Ask("n", leasetest.Session(t, other, leasetest.Long, nil)))
	if g, err := b.Acquire(leasetest.Within(t), req); !errors.Is(err, backend.ErrLost) {
		t.Errorf("%+v, %v; want ErrLost", g, err)
	}
}

// freeze holds back what a session writes for the lock n, whose container exists.
func freeze(t *testing.T, b *zklock.Backend, id backend.SessionID) func() {
	t.Helper()
	req := leasetest.Ask("n", id)
	leasetest.Take(t, b, req)
	leasetest.Give(t, b, req)
	leasetest.Eventually(t, "nothing is under way", func() bool { return !b.Flying(id) })
	return b.Freeze(id)
}

// TestToldDuringTheCreate: the loss of a lease is reported while a create of it is under way. It is
// not granted, and its entry goes.
func TestToldDuringTheCreate(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	b, other := closing(t, server), closing(t, server)
	id := leasetest.Session(t, b, leasetest.Long, nil)
	thaw := freeze(t, b, id)
	req := leasetest.Ask("n", id)
	got := leasetest.Start(t, b, req)
	leasetest.Eventually(t, "the create waits", func() bool { return b.Waiting(id) == 1 })
	b.Tell(id, req.Lease, backend.CauseGone)
	thaw()
	if a := <-got; !errors.Is(a.Err, backend.ErrLost) {
		t.Errorf("%+v; want ErrLost", a)
	}
	leasetest.Take(t, other, leasetest.Ask("n", leasetest.Session(t, other, leasetest.Long, nil)))
}

// deleteBelow deletes the nodes below the path by hand.
func deleteBelow(t *testing.T, conn *zk.Conn, path string) {
	t.Helper()
	nodes, _, err := conn.Children(path)
	if err != nil || len(nodes) == 0 {
		t.Fatalf("%d nodes below %s, %v", len(nodes), path, err)
	}
	for _, n := range nodes {
		if err := conn.Delete(path+"/"+n, -1); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNodeIsDeleted: an operator deletes the node of a held lease by hand.
func TestNodeIsDeleted(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	conn := connect(t, server)
	leasetest.DeletedIsALoss(t, closing(t, server), closing(t, server), func(req backend.AcquireRequest) {
		deleteBelow(t, conn, pathOf(t)+"/locks/"+req.Name)
	})
}

// TestNoticesAreDeleted: an operator deletes the node to which breaks are written. The session
// would not hear of them, so it ends.
func TestNoticesAreDeleted(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	b := closing(t, server)
	told, tell := losses()
	id := leasetest.Session(t, b, leasetest.Long, tell)
	leasetest.Take(t, b, leasetest.Ask("n", id))
	deleteBelow(t, connect(t, server), pathOf(t)+"/notices")
	if l := leasetest.Heard(t, told); l.Session != id || l.Lease != "" || l.Cause != backend.CauseGone {
		t.Errorf("told %+v; want the session, gone", l)
	}
	leasetest.Take(t, b, leasetest.Ask("n", leasetest.Session(t, b, leasetest.Long, nil)))
}

// TestNothingIsRemembered: of tries that were refused, and of leases that were broken, nothing is
// kept but that they were lost.
func TestNothingIsRemembered(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	b, other := closing(t, server), closing(t, server)
	told, tell := losses()
	id := leasetest.Session(t, b, leasetest.Long, tell)
	leasetest.Take(t, other, leasetest.Ask("n", leasetest.Session(t, other, leasetest.Long, nil)))
	for range 20 {
		req := leasetest.Ask("n", id)
		req.Wait = false
		if _, err := b.Acquire(leasetest.Within(t), req); !errors.Is(err, backend.ErrHeld) {
			t.Fatalf("acquire of a lock that is held: %v", err)
		}
		req = leasetest.Ask("m", id)
		leasetest.Take(t, b, req)
		if _, err := other.Break(leasetest.Within(t), backend.BreakRequest{Name: "m"}); err != nil {
			t.Fatal(err)
		}
		leasetest.Heard(t, told)
	}
	if leases, entries := b.Known(id); leases+entries != 0 {
		t.Errorf("%d leases and %d entries are known; none exists", leases, entries)
	}
}
