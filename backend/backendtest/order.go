package backendtest

import (
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func orderCases() []Case {
	const c3 = "waiters are granted in the order in which the backend received them; no waiter is overtaken"
	return []Case{
		{ID: "C3", Name: "first-come-first-served", Rule: c3, Needs: needsFIFO, run: firstCome},
		{ID: "C3", Name: "many-in-queue", Rule: c3, Needs: needsFIFO, run: manyInQueue},
		{ID: "C3", Name: "reader-does-not-pass-writer", Rule: c3, Needs: needsOrder, run: readerBehindWriter},
		{ID: "C3", Name: "writer-does-not-pass-readers", Rule: c3, Needs: needsOrder, run: writerBehindReaders},
		{ID: "C3", Name: "many-permits-are-not-overtaken", Rule: c3, Needs: needsQueue, run: permitsInQueue},
		{ID: "C3", Name: "the-queue-moves-as-far-as-it-fits", Rule: "after a release, all waiters at the head of the queue that fit are granted", Needs: needsQueue, run: queueMovesFar},
		{ID: "C3", Name: "no-try-passes-the-queue", Rule: c3 + ", not even by an acquire that does not wait", Needs: needsFIFO, run: noTryPasses},
	}
}

func firstCome(e *env) {
	clients := []*client{e.client(), e.client(), e.client()}
	queueUp(e, clients, 7)
}

func manyInQueue(e *env) {
	const n = 40
	queueUp(e, []*client{e.client(), e.client(), e.client(), e.client()}, n)
}

// queueUp queues n waiters and lets them through one by one.
func queueUp(e *env, clients []*client, n int) {
	name := e.name()
	l := clients[0].take(clients[0].ask(name))
	var queue []*waiter
	for i := range n {
		c := clients[i%len(clients)]
		if i%5 == 4 {
			queue = append(queue, c.join(c.ask(name, e.timed(e.long()))))
		} else {
			queue = append(queue, c.join(c.ask(name)))
		}
	}
	info := e.inspect(name)
	for i, w := range queue {
		if len(info.Waiters) != n || info.Waiters[i].Lease != w.req.Lease {
			e.Fatalf("Inspect does not report the %d waiters in the order in which they arrived: %+v", n, info.Waiters)
		}
	}
	for i, w := range queue {
		clients[0].give(l)
		l = w.granted()
		if !l.Waited {
			e.Errorf("Grant.Waited is not set for a lease that waited in the queue")
		}
		e.holds(name, l)
		for _, behind := range queue[i+1:] {
			select {
			case <-behind.done:
				e.Fatalf("one further behind was granted too: %+v, %v", behind.grant, behind.err)
			default:
			}
		}
	}
	clients[0].give(l)
	e.free(name)
}

func readerBehindWriter(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	first := a.take(a.ask(name, shared))
	writer := b.join(b.ask(name))
	held := a.refusal(a.ask(name, shared))
	if held.Ahead != 1 {
		e.Errorf("HeldError.Ahead is %d; one waits before it", held.Ahead)
	}
	reader := a.join(a.ask(name, shared))
	reader.waits()
	writer.waits()
	a.give(first)
	l := writer.granted()
	reader.waits()
	e.holds(name, l)
	b.give(l)
	e.holds(name, reader.granted())
}

func writerBehindReaders(e *env) {
	a, b := e.client(), e.client()
	for _, last := range []bool{false, true} { // the reader right before the writer leaves last, or first
		name := e.name()
		first := a.take(a.ask(name))
		one, two := b.join(b.ask(name, shared)), a.join(a.ask(name, shared))
		writer := a.join(a.ask(name))
		three := b.join(b.ask(name, shared))
		a.give(first)
		l1, l2 := one.granted(), two.granted()
		writer.waits()
		three.waits()
		e.holds(name, l1, l2)
		if last {
			l1, l2 = l2, l1
		}
		a.give(l1)
		e.holds(name, l2)
		writer.waits()
		a.give(l2)
		l := writer.granted()
		three.waits()
		e.holds(name, l)
		a.give(l)
		e.holds(name, three.granted())
	}
}

func permitsInQueue(e *env) {
	const limit = 3
	a, b := e.client(), e.client()
	name := e.name()
	one, two := a.take(a.ask(name, permits(limit, 1))), a.take(a.ask(name, permits(limit, 1)))
	all := b.join(b.ask(name, permits(limit, limit)))
	single := a.join(a.ask(name, permits(limit, 1))) // one permit is free
	a.refused(a.ask(name, permits(limit, 1)))
	all.waits()
	a.give(one)
	all.waits()
	single.waits()
	a.give(two)
	l := all.granted()
	single.waits()
	e.holds(name, l)
	a.give(l)
	e.holds(name, single.granted())
}

func queueMovesFar(e *env) {
	const limit = 4
	a, b := e.client(), e.client()
	name := e.name()
	all := a.take(a.ask(name, permits(limit, limit)))
	two, one := a.join(a.ask(name, permits(limit, 2))), b.join(b.ask(name, permits(limit, 1)))
	pair, last := a.join(a.ask(name, permits(limit, 2))), b.join(b.ask(name, permits(limit, 1)))
	a.give(all)
	l1, l2 := two.granted(), one.granted()
	pair.waits()
	last.waits()
	e.holds(name, l1, l2)
	a.give(l2)
	l3 := pair.granted()
	last.waits()
	a.give(l1)
	e.holds(name, l3, last.granted())
}

// noTryPasses has a client that does not wait retry again and again while the lock goes from
// waiter to waiter.
func noTryPasses(e *env) {
	const n = 10
	a, b, c := e.client(), e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	var queue []*waiter
	for range n {
		queue = append(queue, b.join(b.ask(name)))
	}
	passed := make(chan struct{})
	e.all(func() {
		defer close(passed)
		for _, w := range queue {
			a.give(l)
			l = w.granted()
		}
	}, func() {
		for {
			select {
			case <-passed:
				return
			default:
			}
			r := c.ask(name)
			if g, err := c.acquire(r); err == nil {
				e.Fatalf("Acquire without Wait was granted with token %d while others waited in the queue", g.Token)
			} else if !errors.Is(err, backend.ErrHeld) {
				e.Fatalf("Acquire of %s: %v", describe(r), err)
			}
			e.until(time.Now().Add(time.Millisecond))
		}
	})
	a.give(l)
}
