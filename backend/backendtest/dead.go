package backendtest

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func deadWaiterCases() []Case {
	const c8 = "a waiter that dies delays the queue by no more than its session's TTL"
	const wake = "a lost wake-up costs a timer, never a hang"
	return []Case{
		{ID: "C8", Name: "a-dead-waiter-is-passed", Rule: c8, Needs: needsSessions, run: deadWaiter},
		{ID: "C8", Name: "a-waiter-that-died-before-is-passed-at-once", Rule: c8, Needs: needsSessions, run: deadBefore},
		{ID: "C8", Name: "a-waiter-learns-of-its-session", Rule: "when its session ends while a lease is in the queue, Acquire returns ErrSessionLost at the latest when the queue moves", Needs: needsSessions, run: waiterSession},
		{ID: "C8", Name: "a-hand-over-never-stalls", Rule: wake, run: neverStalls},
		{ID: "C8", Name: "every-waiter-is-woken", Rule: wake, run: everyWaiter},
		{ID: "C8", Name: "a-session-end-hands-over", Rule: "EndSession releases every lease and queue place of the session; timed leases stay", Needs: needsSessions, run: sessionEnd},
	}
}

func leftCases() []Case {
	const c13 = "nothing is left on the backend but what tokens need"
	return []Case{
		{ID: "C13", Name: "nothing-is-left", Rule: c13, run: nothingLeft},
	}
}

// deadWaiter has a process die in the queue, and then the lock released.
func deadWaiter(e *env) {
	a, c := e.client(), e.client()
	d := e.on(e.open(), e.ttl())
	name := e.name()
	l := a.take(a.ask(name))
	dead := d.join(d.ask(name))
	behind := c.join(c.ask(name))
	dead.cancel(errGaveUp)
	if err := d.b.Close(); err != nil {
		e.Fatalf("Close: %v", err)
	}
	a.give(l)
	latest := d.opened.to.Add(e.ttl() + e.caps.ExpiryLag + e.h.Slack)
	e.holds(name, behind.grantedWithin(time.Until(latest)))
}

// deadBefore has a process die in the queue, and its session expire, before the lock is
// released.
func deadBefore(e *env) {
	a, c, d := e.client(), e.client(), e.mortal()
	name := e.name()
	l := a.take(a.ask(name))
	dead := d.join(d.ask(name))
	behind := c.join(c.ask(name))
	dead.cancel(errGaveUp)
	dead.returns(e.soon())
	e.until(d.opened.to.Add(e.ttl() + e.caps.ExpiryLag))
	from := time.Now()
	a.give(l)
	next := behind.granted()
	e.Logf("the hand-over took %s", time.Since(from))
	e.holds(name, next)
}

func waiterSession(e *env) {
	a, d, g := e.client(), e.mortal(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	ended, expired, timedOut := g.join(g.ask(name)), d.join(d.ask(name)), d.join(d.ask(name, e.timed(e.long())))
	behind := a.join(a.ask(name))
	g.end()
	e.until(d.opened.to.Add(e.ttl() + e.caps.ExpiryLag))
	a.give(l)
	next := behind.granted()
	for _, w := range []*waiter{ended, expired, timedOut} {
		w.fails(backend.ErrSessionLost)
	}
	e.holds(name, next)
}

// neverStalls hands one lock round as fast as possible while no client inspects the queue:
// wake-ups are lost there. A store that pushes does not leave every hand-over to another process to a timer.
func neverStalls(e *env) {
	const processes, each, rounds, budget = 3, 2, 40, 3 * time.Second
	clients := make([]*client, processes)
	e.times(processes, func(i int) { clients[i] = e.client() })
	name := e.name()
	stop := time.Now().Add(budget)
	var longest, n, passed, timers, last atomic.Int64 // last: the process that had the lock
	e.times(processes*each, func(i int) {
		c := clients[i%processes]
		for range rounds {
			if time.Now().After(stop) {
				return
			}
			r := c.ask(name)
			r.Wait = true
			l := c.take(r)
			if last.Swap(int64(i%processes)) != int64(i%processes) && l.Waited {
				passed.Add(1)
				if l.ByTimer {
					timers.Add(1)
				}
			}
			n.Add(1)
			longest.Store(max(longest.Load(), int64(l.asked.to.Sub(l.asked.from))))
			if rand.IntN(3) == 0 {
				e.until(time.Now().Add(rand.N(maxHold)))
			}
			c.give(l)
		}
	})
	e.Logf("%d grants, the longest wait was %s; of %d to another process, %d were found by a timer", n.Load(), time.Duration(longest.Load()), passed.Load(), timers.Load())
	if e.caps.Push && timers.Load() > 1 && timers.Load() == passed.Load() {
		e.Errorf("a timer found every one of %d grants to another process; the store says that it pushes", passed.Load())
	}
	e.free(name)
}

// everyWaiter has many waiters wait and each of them pass the lock on.
func everyWaiter(e *env) {
	const n = 60
	clients := []*client{e.client(), e.client(), e.client()}
	name := e.name()
	l := clients[0].take(clients[0].ask(name))
	var queue []*waiter
	for i := range n {
		c := clients[i%len(clients)]
		queue = append(queue, c.start(c.ask(name)))
	}
	var grants atomic.Int64
	fs := []func(){func() { clients[0].give(l) }}
	for _, w := range queue {
		fs = append(fs, func() { w.c.give(w.grantedWhile(&grants)) })
	}
	e.all(fs...)
	e.free(name)
}

func sessionEnd(e *env) {
	a, b := e.client(), e.client()
	names := []string{e.name(), e.name(), e.name()}
	var waiters []*waiter
	for _, n := range names {
		b.take(b.ask(n))
		waiters = append(waiters, a.join(a.ask(n)))
	}
	place, kept := e.name(), e.name()
	l := a.take(a.ask(place))
	own := b.join(b.ask(place))
	stays := b.take(b.ask(kept, e.timed(e.long())))
	b.end()
	for i, w := range waiters {
		e.holds(names[i], w.granted())
	}
	if info := e.inspect(place); own.inQueue(info) {
		e.Fatalf("the session has ended; its place in the queue is there still: %+v", info.Waiters)
	}
	a.give(l)
	e.free(place)
	own.fails(backend.ErrSessionLost)
	if e.caps.Timed {
		e.holds(kept, stays)
	}
}

func nothingLeft(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	prefix := name + "/"
	var leases []lease
	for _, s := range []string{"one", "two", "three"} {
		leases = append(leases, a.take(a.ask(prefix+s)))
	}
	leases = append(leases, a.take(a.ask(prefix+"timed", e.timed(e.long()))))
	var waiters []*waiter
	for _, l := range leases {
		waiters = append(waiters, b.join(b.ask(l.Name)))
	}
	for _, w := range waiters[:2] {
		w.giveUp()
		b.abandon(w.req)
	}
	e.breakLock(leases[0].Name, "test")
	for _, l := range leases[1:] {
		a.give(l)
	}
	b.give(waiters[2].granted())
	b.give(waiters[3].granted())
	if e.caps.Sessions { // leases and queue places end with the session
		a.take(a.ask(leases[0].Name))
		b.join(b.ask(leases[0].Name))
		b.end()
		a.end()
	}
	if page := e.list(backend.ListRequest{Prefix: prefix}); len(page.Locks) > 0 || page.Next != "" {
		e.Fatalf("every lease was released; List returned %+v", page)
	}
}

// list returns one page.
func (e *env) list(req backend.ListRequest) backend.ListPage {
	ctx, cancel := e.within(e.soon())
	defer cancel()
	page, err := e.anyBackend().List(ctx, req)
	if err != nil {
		e.Fatalf("List %+v: %v", req, err)
	}
	return page
}
