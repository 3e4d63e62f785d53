package backendtest

import (
	"context"
	"errors"

	"github.com/holdfast-io/holdfast/backend"
)

func abandonCases() []Case {
	const c7 = "a waiter that gives up leaves nothing behind"
	const gone = "an abandoned acquire is known gone, also when its request arrives after it was abandoned"
	return []Case{
		{ID: "C7", Name: "abandon-what-is-held", Rule: gone, run: abandonHeld},
		{ID: "C7", Name: "abandon-what-waits", Rule: c7, run: abandonWaiting},
		{ID: "C7", Name: "abandon-before-the-acquire", Rule: gone, run: abandonBefore},
		{ID: "C7", Name: "abandon-races-the-acquire", Rule: gone, run: abandonRacesAcquire},
		{ID: "C7", Name: "abandon-races-the-grant", Rule: gone, run: abandonRacesGrant},
		{ID: "C7", Name: "abandoned-head-lets-the-queue-move", Rule: c7 + ", and the waiters behind it move up immediately", Needs: needsOrder, run: abandonHead},
		{ID: "C7", Name: "give-up-then-abandon", Rule: c7, run: giveUpThenAbandon},
		{ID: "C7", Name: "release-of-a-place-in-queue", Rule: "Release also releases a place in the queue", run: releasePlace},
		{ID: "C7", Name: "many-give-up", Rule: c7, run: manyGiveUp},
	}
}

// neverGranted requests a lease that was abandoned. The first request waits: on a store with a short form for a lock without
// waiters it is the one that ends that form.
func (c *client) neverGranted(r backend.AcquireRequest) {
	for _, wait := range []bool{true, false, true} {
		r.Wait = wait
		if g, err := c.acquire(r); !errors.Is(err, backend.ErrLost) {
			c.e.Fatalf("Acquire of %s, which was abandoned, returned (%+v, %v); it has to be ErrLost", describe(r), g, err)
		}
	}
}

func abandonHeld(e *env) {
	a, b := e.client(), e.client()
	for _, opts := range [][]option{nil, {e.timed(e.long())}} {
		name := e.name()
		l := a.take(a.ask(name, opts...))
		w := b.join(b.ask(name))
		a.abandon(l.AcquireRequest)
		next := w.granted()
		a.abandon(l.AcquireRequest)
		a.neverGranted(l.AcquireRequest)
		e.holds(name, next)
		b.give(next)
		a.neverGranted(l.AcquireRequest)
		e.free(name)
	}
}

func abandonWaiting(e *env) {
	a, b := e.client(), e.client()
	for _, opts := range [][]option{nil, {e.timed(e.long())}} {
		name := e.name()
		l := a.take(a.ask(name))
		w, behind := b.join(b.ask(name, opts...)), a.join(a.ask(name))
		b.abandon(w.req)
		if info := e.inspect(name); e.caps.FIFO && (len(info.Waiters) != 1 || w.inQueue(info)) {
			e.Fatalf("an abandoned waiter is in the queue still: %+v", info.Waiters)
		}
		b.neverGranted(w.req)
		a.give(l)
		next := behind.granted()
		w.returns(e.soon())
		if w.err == nil {
			e.Fatalf("Acquire of %s was granted after it was abandoned: %+v", describe(w.req), w.grant)
		}
		e.holds(name, next)
		a.give(next)
		e.free(name)
	}
}

func abandonBefore(e *env) {
	a, b := e.client(), e.client()
	for _, opts := range [][]option{nil, {e.timed(e.long())}} {
		name := e.name()
		r := a.ask(name, opts...)
		by := e.other(a, b)
		by.abandon(r)
		a.neverGranted(r)
		by.neverGranted(backend.AcquireRequest{Name: r.Name, Lease: r.Lease, Session: by.sess, Timed: r.Timed, TTL: r.TTL})
		e.free(name)
		l := b.take(b.ask(name))
		a.neverGranted(r)
		b.give(l)
		by.abandon(r)
		a.neverGranted(r)
		e.free(name)
	}
}

// abandonRacesAcquire sends both concurrently: whichever is first, the lock is free in the end.
func abandonRacesAcquire(e *env) {
	const rounds = 30
	a, b := e.client(), e.client()
	name := e.name()
	for range rounds {
		r := a.ask(name)
		r.Wait = true
		e.all(func() {
			if _, err := a.acquire(r); err != nil && !errors.Is(err, backend.ErrLost) {
				e.Fatalf("Acquire of %s while it was abandoned: %v", describe(r), err)
			}
		}, func() { e.other(a, b).abandon(r) })
		e.free(name)
		a.neverGranted(r)
		b.give(b.take(b.ask(name)))
	}
}

// abandonRacesGrant abandons a waiter at the moment when the lock is granted to it.
func abandonRacesGrant(e *env) {
	const rounds = 30
	a, b := e.client(), e.client()
	name := e.name()
	for range rounds {
		l := a.take(a.ask(name))
		w := b.join(b.ask(name))
		behind := a.start(a.ask(name))
		if e.caps.FIFO {
			behind.queueUp()
		}
		e.all(func() { a.give(l) }, func() { w.cancel(errGaveUp); b.abandon(w.req) })
		next := behind.granted()
		w.returns(e.soon())
		e.holds(name, next)
		b.neverGranted(w.req)
		a.give(next)
		e.free(name)
	}
}

func abandonHead(e *env) {
	a, b, c := e.client(), e.client(), e.client()
	name := e.name()
	first := a.take(a.ask(name, shared))
	writer := b.join(b.ask(name))
	one, two := c.join(c.ask(name, shared)), a.join(a.ask(name, shared))
	writer.giveUp()
	b.abandon(writer.req)
	e.holds(name, first, one.granted(), two.granted())
	if !e.caps.Sessions {
		return
	}
	// The same when the session of the head of the queue ends.
	writer = b.join(b.ask(name))
	three := c.join(c.ask(name, shared))
	b.end()
	three.granted()
	writer.fails(backend.ErrSessionLost)
}

func giveUpThenAbandon(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	w, behind := b.join(b.ask(name)), a.join(a.ask(name))
	w.giveUp()
	b.abandon(w.req)
	a.give(l)
	next := behind.granted()
	e.holds(name, next)
	a.give(next)
	e.free(name)
}

func releasePlace(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	w := b.join(b.ask(name))
	if e.caps.FIFO {
		err := b.release(w.req)
		w.fails(backend.ErrLost)
		if errors.Is(err, backend.ErrLost) {
			// The answer to the first acquire was still on its way, and the acquire itself gave the place up.
			w = b.join(b.ask(name))
			err = b.release(w.req)
			w.fails(backend.ErrLost)
		}
		if err != nil {
			e.Fatalf("Release of a lease in the queue: %v", err)
		}
		// A place in the middle hands nothing to those around it, of whichever process that and the holder are.
		// Whether its caller still waits makes no difference.
		for i := range 4 {
			c := []*client{a, b}[i%2]
			front, middle, behind := c.join(c.ask(name)), c.join(c.ask(name)), c.join(c.ask(name))
			if i < 2 {
				middle.giveUp()
			}
			if err := c.release(middle.req); err != nil && !errors.Is(err, backend.ErrLost) {
				e.Fatalf("Release of a lease in the middle of the queue: %v", err)
			}
			if i >= 2 {
				middle.fails(backend.ErrLost)
			}
			for _, other := range []*waiter{front, behind} {
				other.waits()
				other.giveUp()
				c.abandon(other.req)
			}
		}
	}
	e.holds(name, l)
	w.cancel(errGaveUp)
	b.abandon(w.req)
	a.give(l)
	e.free(name)
}

// manyGiveUp has many waiters wait for very different times while the lock is handed round.
func manyGiveUp(e *env) {
	const n = 24
	clients := []*client{e.client(), e.client(), e.client()}
	name := e.name()
	l := clients[0].take(clients[0].ask(name))
	e.times(n, func(i int) {
		c := clients[i%len(clients)]
		w := c.start(c.ask(name))
		if i%4 > 0 && e.caps.FIFO {
			w.queueUp()
		}
		w.cancel(errGaveUp)
		w.returns(e.soon())
		if w.err == nil {
			e.Fatalf("Acquire of %s was granted while another held the lock", describe(w.req))
		}
		if !errors.Is(w.err, errGaveUp) && !errors.Is(w.err, context.Canceled) && !errors.Is(w.err, backend.ErrUnavailable) {
			e.Errorf("Acquire of %s: %v; it has to be the cause of its context", describe(w.req), w.err)
		}
		c.abandon(w.req)
	})
	info := e.inspect(name)
	if len(info.Waiters) > 0 {
		e.Fatalf("all waiters were abandoned; Inspect reports %+v", info.Waiters)
	}
	e.holds(name, l)
	clients[0].give(l)
	e.free(name)
	clients[1].give(clients[1].take(clients[1].ask(name)))
}
