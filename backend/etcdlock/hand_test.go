package etcdlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/fence"
)

// still fails if a waiter is granted the lock although it is not its turn.
func still(t *testing.T, b *etcdlock.Backend, name string, waits <-chan result) {
	t.Helper()
	select {
	case r := <-waits:
		t.Fatalf("not its turn: %+v, %v", r.grant, r.err)
	case <-time.After(100 * time.Millisecond):
	}
	await(t, "back in the queue", func() bool { return b.Waiting(name) == 1 })
}

// Within one process a hand-over takes one transaction: the one that releases also reports to the
// next waiter, and takes along a change that joins the queue.
func TestHandOverIsOneRequest(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b := direct(t, members)
	s := kept(t, b)
	const waiters, proposals = 12, "etcd_server_proposals_committed_total"
	held := request("lock", s)
	if _, err := b.Acquire(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	granted := make(chan result, waiters)
	join := func() {
		req := request("lock", s)
		go func() {
			g, err := b.Acquire(t.Context(), req)
			granted <- result{req, g, err}
		}()
	}
	for n := range waiters {
		join()
		await(t, "in the queue", func() bool { return b.Waiting("lock") == n+1 })
	}
	b.RideFor(time.Minute) // from here on: the first of a queue has no change to travel with
	var last fence.Token
	pass := func() {
		freed := time.Now()
		release(t, b, held)
		r := receive(t, granted)
		if r.err != nil || r.grant.Token <= last || !r.grant.Waited || r.grant.ByTimer && time.Since(freed) > wakes {
			t.Fatalf("%+v, %v after token %d", r.grant, r.err, last)
		}
		last, held = r.grant.Token, r.req
	}
	before := metric(t, members[0], proposals)
	for range waiters {
		join()
		await(t, "waiting for one to travel with", func() bool { return b.Riding("lock") == 1 })
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
	release(t, b, held)
}

// If the entry right before a waiter goes, others may still hold the lock.
func TestHandOverIsNotTooEarly(t *testing.T) {
	t.Parallel()
	b := direct(t, etcd(t))
	s := kept(t, b)
	first, second := request("shared", s), request("shared", s)
	for _, req := range []*backend.AcquireRequest{&first, &second} {
		req.Mode = backend.Shared
		if _, err := b.Acquire(t.Context(), *req); err != nil {
			t.Fatal(err)
		}
	}
	waits := start(t.Context(), b, request("shared", s))
	await(t, "in the queue", func() bool { return b.Waiting("shared") == 1 })
	release(t, b, second)
	still(t, b, "shared", waits)
	release(t, b, first)
	if r := receive(t, waits); r.err != nil {
		t.Fatal(r.err)
	}
}

// A waiter whose entry was removed from the queue by another client is not handed the lock.
func TestHandOverToOneThatIsGone(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b, other := direct(t, members), direct(t, members)
	s := kept(t, b)
	held, gone := request("lock", s), request("lock", s)
	if _, err := b.Acquire(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	waits := start(t.Context(), b, gone)
	await(t, "in the queue", func() bool { return b.Waiting("lock") == 1 })
	next := start(t.Context(), b, request("lock", s))
	await(t, "in the queue", func() bool { return b.Waiting("lock") == 2 })
	release(t, other, gone)
	release(t, b, held)
	if r := receive(t, waits); r.err == nil {
		t.Errorf("released in the queue, and granted %+v", r.grant)
	}
	if r := receive(t, next); r.err != nil {
		t.Error(r.err)
	}
}

// A change that joins a queue does not wait for ever for another change to travel with, and is
// withdrawn when its caller leaves.
func TestRiderGoesAlone(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b := direct(t, members)
	s := kept(t, b)
	held := request("lock", s)
	if _, err := b.Acquire(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	var queue []<-chan result
	for n := range 4 {
		queue = append(queue, start(t.Context(), b, request("lock", s)))
		await(t, "in the queue", func() bool { return b.Waiting("lock") == n+1 })
	}
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
		req := request("lock", s)
		if _, err := b.Acquire(ctx, req); err == nil {
			t.Error("granted behind others")
		}
		cancel()
		err := b.Release(t.Context(), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: s, Abandon: true})
		if err != nil {
			t.Fatal(err)
		}
	}
	info, err := b.Inspect(t.Context(), "lock")
	if err != nil || len(info.Waiters) != len(queue) {
		t.Fatalf("%d in the queue, %v; want %d", len(info.Waiters), err, len(queue))
	}
	release(t, b, held)
	for _, c := range queue {
		r := receive(t, c)
		if r.err != nil {
			t.Fatal(r.err)
		}
		release(t, b, r.req)
	}
}
