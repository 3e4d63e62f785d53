package leasetest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/chaos"
)

// What stores whose locks are ordered keys must survive: etcd, ZooKeeper and Consul. In each, b and other are values of
// one store.

// timerFound reports whether a waiter was granted the lock long after the moment, because a timer made it read.
func timerFound(g backend.Grant, freed time.Time) bool {
	const wakes = 3 * time.Second // longer than a push takes; a timer that is due just then may be faster
	return g.ByTimer && time.Since(freed) > wakes
}

// StartInsisting is Start that asks again while the store is unavailable, however long the machine stands still.
func StartInsisting(t *testing.T, b backend.Backend, req backend.AcquireRequest) <-chan Answer {
	t.Helper()
	got := make(chan Answer, 1)
	go func() {
		var a Answer
		for began := time.Now(); time.Since(began) < Long; {
			a.Grant, a.Err = Insist(t, func(ctx context.Context) (backend.Grant, error) { return b.Acquire(ctx, req) })
			if !errors.Is(a.Err, backend.ErrUnavailable) {
				break
			}
		}
		got <- a
	}()
	return got
}

// InsistGive releases the lock, again while the store is unavailable. If an answer was lost, the lease is gone.
func InsistGive(t *testing.T, b backend.Backend, req backend.AcquireRequest) {
	t.Helper()
	err := InsistOn(t, func(ctx context.Context) error {
		return b.Release(ctx, backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: req.Session})
	})
	if err != nil && !errors.Is(err, backend.ErrLost) {
		t.Errorf("release %q: %v", req.Name, err)
	}
}

// holds checks that the lease is the only one of its lock.
func holds(t *testing.T, b backend.Backend, req backend.AcquireRequest) fence.Token {
	t.Helper()
	info, err := b.Inspect(Within(t), req.Name)
	if err != nil || len(info.Holders) != 1 || len(info.Waiters) != 0 || info.Holders[0].Lease != req.Lease {
		t.Fatalf("%+v, %v; want the holder %s and no waiter", info, err, req.Lease)
	}
	return info.Holders[0].Token
}

// LostReply (F7, C6, C12): the reply to an acquire is lost on the way of b, which is through the proxy. There is no ghost: the
// same lease again is the same grant, and nothing is left after its release. mark precedes a lease in a request that writes.
func LostReply(t *testing.T, b, other backend.Backend, proxy *chaos.Proxy, mark string) {
	t.Helper()
	id, caps := Session(t, b, Long, nil), b.Capabilities()
	values := []backend.Backend{b}
	if !caps.Bound {
		values = append(values, other)
	}
	shared, timed := Ask("shared", id), Ask("timed", id)
	shared.Mode, shared.Limit, shared.Permits = backend.Shared, 3, 2
	if caps.Timed {
		timed.Timed, timed.TTL = true, time.Minute
	}
	for _, req := range []backend.AcquireRequest{Ask("exclusive", id), try("try", id), shared, timed} {
		lost := proxy.LoseReply(func(piece []byte) bool { return bytes.Contains(piece, []byte(mark+string(req.Lease))) })
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := b.Acquire(ctx, req)
			failed <- err
		}()
		isLost(t, lost, failed)
		Eventually(t, "the request has arrived", func() bool { // a caller that gives up before withdraws it
			info, err := other.Inspect(Within(t), req.Name)
			return err == nil && len(info.Holders) == 1
		})
		token := holds(t, other, req)
		cancel()
		if err := <-failed; err == nil {
			t.Fatalf("%s: granted without an answer", req.Name)
		}
		proxy.Heal()
		for _, v := range values {
			g, err := Insist(t, func(ctx context.Context) (backend.Grant, error) { return v.Acquire(ctx, req) })
			if err != nil || g.Token != token {
				t.Errorf("%s: the repeated acquire: %+v, %v; want token %d", req.Name, g, err, token)
			}
		}
		holds(t, other, req)
		Give(t, b, req)
		if !caps.Bound { // the first request may still be on its way
			if g, err := other.Acquire(Within(t), req); !errors.Is(err, backend.ErrLost) {
				t.Errorf("%s: acquired again after its release: %+v, %v", req.Name, g, err)
			}
		}
		isFree(t, other, req.Name)
	}
}

// LostHandOver (F7): the answer to a release is lost that names the next waiter of the same value, b, which is through the
// proxy. That waiter holds the lock alone, and no timer told it.
func LostHandOver(t *testing.T, b, other backend.Backend, proxy *chaos.Proxy) {
	t.Helper()
	const attempts = 20 // until the waiter is known here before the lock is released
	id := Session(t, b, Long, nil)
	sprung := false
	for n := 0; n < attempts && !sprung; n++ {
		held, next := Ask("n", id), Ask("n", id)
		before := Take(t, b, held)
		got := StartInsisting(t, b, next)
		InQueue(t, other, "n", 1)
		lost := proxy.LoseReply(func(piece []byte) bool {
			return bytes.Contains(piece, []byte(held.Lease)) && bytes.Contains(piece, []byte(next.Lease))
		})
		freed, released := time.Now(), make(chan error, 1)
		ctx := Within(t)
		go func() {
			released <- b.Release(ctx, backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: id})
		}()
		var err error
		select {
		case <-lost:
			sprung = true
			proxy.Reset()
			err = <-released
		case err = <-released:
		}
		proxy.Heal()
		if err != nil && (!sprung || !errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, backend.ErrLost)) {
			t.Errorf("the release: %v", err)
		}
		if a := <-got; a.Err != nil || timerFound(a.Grant, freed) || a.Grant.Token <= before || a.Grant.Token != holds(t, other, next) {
			t.Errorf("the next waiter: %+v after token %d", a, before)
		}
		Give(t, b, next)
	}
	if !sprung {
		t.Error("no release named the next waiter")
	}
}

// NextIsGone (C5): other releases the place of the waiter that is next. It gets no lock when the holder, of the same session,
// releases it, and the waiter behind it does, not by a timer.
func NextIsGone(t *testing.T, b, other backend.Backend) {
	t.Helper()
	id := Session(t, b, Long, nil)
	held, gone, next := Ask("n", id), Ask("n", id), Ask("n", id)
	Take(t, b, held)
	lost := Start(t, b, gone)
	InQueue(t, other, "n", 1)
	had := Start(t, b, next)
	InQueue(t, other, "n", 2)
	Give(t, other, gone)
	freed := time.Now()
	Give(t, b, held)
	if a := <-lost; !errors.Is(a.Err, backend.ErrLost) {
		t.Errorf("the waiter whose place was released: %+v; want ErrLost", a)
	}
	if a := <-had; a.Err != nil || timerFound(a.Grant, freed) {
		t.Errorf("the one behind it: %+v", a)
	}
	Give(t, b, next)
	isFree(t, other, "n")
}

// LeaderDown (F9, F17): hurt makes the leader of a store's servers go while b holds the lock and other waits. The holder keeps
// it, the waiter is granted it after its release, with a greater token, and no session is lost.
func LeaderDown(t *testing.T, b, other backend.Backend, hurt func()) {
	t.Helper()
	lost := make(chan backend.Loss, 10)
	tell := func(l backend.Loss) { lost <- l }
	held, next := Ask("n", Session(t, b, Long, tell)), Ask("n", Session(t, other, Long, tell))
	first := Take(t, b, held)
	got := StartInsisting(t, other, next)
	InQueue(t, b, "n", 1)
	hurt()
	if a := <-StartInsisting(t, b, held); a.Err != nil || a.Grant.Token != first {
		t.Errorf("the holder, again: %+v; want token %d", a, first)
	}
	InsistGive(t, b, held)
	if a := <-got; a.Err != nil || a.Grant.Token <= first {
		t.Errorf("the waiter: %+v after token %d", a, first)
	}
	InsistGive(t, other, next)
	if len(lost) > 0 {
		t.Errorf("lost: %+v", <-lost)
	}
}

// NoHerd (F20, B12): so many clients of each value wait. They get the lock in order, hardly any by a timer. What cost counts
// rises by at most most for all hand-overs together; a herd is the square of the waiters. ready is called when all wait.
func NoHerd[B backend.Backend](t *testing.T, values []B, each int, ready func(), cost func() int, most int) {
	t.Helper()
	n := each * len(values)
	ids := make([]backend.SessionID, len(values))
	for i, b := range values {
		ids[i] = Session(t, b, 2*Long, nil)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Long) // for all turns
	defer cancel()
	held := Ask("n", ids[0])
	last := Take(t, values[0], held)
	asked, answers := make([]backend.AcquireRequest, n), make([]chan Answer, n)
	var all sync.WaitGroup
	defer all.Wait()
	for i := range n {
		b := values[i%len(values)]
		asked[i], answers[i] = Ask("n", ids[i%len(values)]), make(chan Answer, 1)
		all.Go(func() {
			g, err := b.Acquire(ctx, asked[i])
			answers[i] <- Answer{g, err}
		})
		InQueue(t, values[0], "n", i+1)
	}
	ready()
	before, timers := cost(), 0
	Give(t, values[0], held)
	for i, c := range answers {
		a := <-c
		if a.Err != nil || a.Grant.Token <= last || !a.Grant.Waited {
			t.Fatalf("waiter %d: %+v after token %d", i, a, last)
		}
		for j, other := range answers[i+1:] {
			if len(other) > 0 {
				t.Fatalf("waiter %d has an answer while %d holds the lock: %+v", i+1+j, i, <-other)
			}
		}
		if last = a.Grant.Token; a.Grant.ByTimer {
			timers++
		}
		Give(t, values[i%len(values)], asked[i])
	}
	spent := cost() - before
	t.Logf("%d for %d hand-overs", spent, n)
	if spent > most || timers > n/10 { //nolint:mnd // a timer may fire at that very moment, on a busy machine
		t.Errorf("%d hand-overs cost %d, at most %d are allowed; %d were found by a timer", n, spent, most, timers)
	}
}

// DeletedIsALoss (F22, C10): remove deletes the key of a lease behind the back of b, and another client acquires the lock. The
// holder is told. Leases that it released, or whose break was told, are not told again.
func DeletedIsALoss(t *testing.T, b, other backend.Backend, remove func(backend.AcquireRequest)) {
	t.Helper()
	const more = 20 // than are checked together
	told := make(chan backend.Loss, 2*more)
	id := Session(t, b, Long, func(l backend.Loss) { told <- l })
	deleted, broken, given, kept := Ask("n", id), Ask("broken", id), Ask("given", id), make([]backend.AcquireRequest, more)
	for i := range kept {
		kept[i] = Ask("kept"+string(rune('a'+i)), id)
		Take(t, b, kept[i])
	}
	Take(t, b, deleted)
	Take(t, b, broken)
	Take(t, b, given)
	Give(t, b, given)
	if _, err := other.Break(Within(t), backend.BreakRequest{Name: broken.Name}); err != nil {
		t.Fatal(err)
	}
	remove(deleted)
	Take(t, other, Ask(deleted.Name, Session(t, other, Long, nil)))
	want := map[backend.LeaseID]backend.Cause{deleted.Lease: backend.CauseGone, broken.Lease: backend.CauseBroken}
	reported := make(map[backend.LeaseID]bool)
	Eventually(t, "renewals report both losses", func() bool {
		res, err := b.Renew(Within(t), backend.RenewRequest{Session: id})
		if err != nil || res.SessionLost {
			t.Fatalf("renew: %+v, %v", res, err)
		}
		for _, l := range res.Lost {
			if want[l.Lease] == l.Cause {
				reported[l.Lease] = true
			} else if l.Lease != broken.Lease { // which a store may find to be gone, too
				t.Errorf("reported %+v", l)
			}
		}
		return len(reported) == len(want)
	})
	if err := b.Release(Within(t), backend.ReleaseRequest{Name: deleted.Name, Lease: deleted.Lease, Session: id}); !errors.Is(err, backend.ErrLost) {
		t.Errorf("release of what is gone: %v", err)
	}
	for _, req := range kept {
		Give(t, b, req)
	}
	for len(told) > 0 {
		l := <-told
		if want[l.Lease] != l.Cause {
			t.Errorf("told %+v", l)
		}
		delete(want, l.Lease) // each is told once
	}
}
