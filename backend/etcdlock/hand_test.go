package etcdlock_test

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// Within one process a hand-over takes one transaction: the one that releases also reports to the
// next waiter, and takes along a change that joins the queue.
func TestHandOverIsOneRequest(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b := direct(t, members)
	s := kept(t, b)
	const waiters, proposals = 12, "etcd_server_proposals_committed_total"
	held := leasetest.Ask("lock", s)
	leasetest.Take(t, b, held)
	type place struct {
		req backend.AcquireRequest
		got <-chan leasetest.Answer
	}
	var queue []place
	join := func() {
		req := leasetest.Ask("lock", s)
		queue = append(queue, place{req, leasetest.Start(t, b, req)})
	}
	for n := range waiters {
		join()
		leasetest.Eventually(t, "in the queue", func() bool { return b.Waiting("lock") == n+1 })
	}
	b.RideFor(time.Minute) // from here on: the first of a queue has no change to travel with
	var last fence.Token
	pass := func() {
		freed := time.Now()
		leasetest.Give(t, b, held)
		next := queue[0]
		queue = queue[1:]
		r := <-next.got
		if r.Err != nil || r.Grant.Token <= last || !r.Grant.Waited || r.Grant.ByTimer && time.Since(freed) > wakes {
			t.Fatalf("%+v, %v after token %d", r.Grant, r.Err, last)
		}
		last, held = r.Grant.Token, next.req
	}
	before := metric(t, members[0], proposals)
	for range waiters {
		join()
		leasetest.Eventually(t, "waiting for one to travel with", func() bool { return b.Riding("lock") == 1 })
		pass()
	}
	// Some are etcd's own; twice as many would be ours.
	if n := metric(t, members[0], proposals) - before; n > waiters*3/2 {
		t.Errorf("%d hand-overs with one that joined were %d transactions", waiters, n)
	}
	before = metric(t, members[0], proposals)
	for range waiters {
		pass()
	}
	if n := metric(t, members[0], proposals) - before; n > waiters*3/2 {
		t.Errorf("%d hand-overs were %d transactions", waiters, n)
	}
	leasetest.Give(t, b, held)
}

// A waiter whose entry was removed from the queue by another client is not handed the lock.
func TestHandOverToOneThatIsGone(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	leasetest.NextIsGone(t, direct(t, members), direct(t, members))
}

// A lease that waits is granted once, also where two clients wait for it under one session.
func TestInQueueIsGrantedOnce(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b, other := direct(t, members), direct(t, members)
	s := kept(t, b)
	held, waiter := leasetest.Ask("lock", s), leasetest.Ask("lock", s)
	leasetest.Take(t, b, held)
	one, two := leasetest.Start(t, b, waiter), leasetest.Start(t, other, waiter)
	leasetest.Eventually(t, "both wait", func() bool { return b.Waiting("lock") == 1 && other.Waiting("lock") == 1 })
	leasetest.Give(t, b, held)
	if x, y := <-one, <-two; x.Err != nil || y.Err != nil || x.Grant.Token != y.Grant.Token {
		t.Fatalf("%+v and %+v", x, y)
	}
	leasetest.Give(t, other, waiter)
	leasetest.Take(t, other, leasetest.Ask("lock", s))
}
