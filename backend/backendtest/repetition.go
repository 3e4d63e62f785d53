package backendtest

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

func repetitionCases() []Case {
	const c6 = "the same acquire asked twice with the same lease ID yields one grant"
	return []Case{
		{ID: "C6", Name: "acquire-twice-is-one-grant", Rule: c6, run: acquireTwice},
		{ID: "C6", Name: "acquire-twice-at-once", Rule: c6, run: acquireAtOnce},
		{ID: "C6", Name: "acquire-twice-in-queue", Rule: c6 + " and one place in the queue", Needs: needsFIFO, run: acquireInQueue},
		{ID: "C6", Name: "a-try-keeps-the-place", Rule: "a waiting lease that is acquired again without Wait is refused and keeps its place", Needs: needsFIFO, run: tryKeepsPlace},
		{ID: "C6", Name: "one-of-two-gives-up", Rule: "an acquire that was sent twice continues when one of the two gives up", run: oneGivesUp},
		{ID: "C6", Name: "a-new-session-adopts-the-place", Rule: "a waiting lease that is acquired again under another session keeps its place, which belongs to that session from then on", Needs: func(c caps) bool { return c.FIFO && c.Sessions && !c.Bound }, run: adoptPlace},
		{ID: "C6", Name: "the-grant-of-an-adopted-place", Rule: "a place that another session adopted is granted to that session, and an earlier request of it gets ErrLost", Needs: func(c caps) bool { return c.FIFO && c.Sessions && !c.Bound }, run: adoptedPlaceGranted},
		{ID: "C6", Name: "the-end-of-an-adopted-place", Rule: "a place that another session adopted ends with that session, and an earlier request of it gets ErrLost: its own session lives", Needs: func(c caps) bool { return c.FIFO && c.Sessions && !c.Bound }, run: adoptedPlaceEnds},
		{ID: "C6", Name: "a-new-session-adopts-no-lease", Rule: "acquiring a session lease that is held under another session returns ErrLost: the lease ends with that session", Needs: needsSessions, run: adoptNoLease},
		{ID: "C6", Name: "release-twice-frees-once", Rule: "a release that was sent twice frees the lock once and harms no successor", run: releaseTwice},
		{ID: "C6", Name: "open-and-end-twice", Rule: "opening a session that lives confirms it, and ending one that is gone is success", Needs: needsSessions, run: openEndTwice},
		{ID: "C6", Name: "renew-twice-in-one-call", Rule: "a call that names one lease twice renews it, and every other lease", Needs: needsTimed, run: renewTwice},
		{ID: "C6", Name: "open-with-another-ttl", Rule: "opening a session that lives with another TTL takes that on or is refused, and the session lives on", Needs: needsSessions, run: openOtherTTL},
	}
}

func acquireTwice(e *env) {
	a := e.client()
	other := e.other(a, &client{e: e, b: e.open(), sess: a.sess}) // a second connection of the same process
	for _, opts := range [][]option{nil, {e.timed(e.long())}} {
		name := e.name()
		r := a.ask(name, opts...)
		l := a.take(r)
		for i, c := range []*client{a, other, a} {
			r.Wait = i == 2
			if again := c.take(r); again.Token != l.Token {
				e.Fatalf("the second Acquire of %s has token %d, the first %d", describe(r), again.Token, l.Token)
			}
		}
		e.holds(name, l)
		b := e.client()
		w := b.join(b.ask(name))
		for _, c := range []*client{a, other} {
			if again := c.take(r); again.Token != l.Token {
				e.Fatalf("the Acquire of %s with another in the queue has token %d, the first %d", describe(r), again.Token, l.Token)
			}
		}
		w.waits()
		other.give(l)
		b.give(w.granted())
		e.free(name)
	}
	if !e.caps.Permits {
		return
	}
	name := e.name()
	r := a.ask(name, permits(2, 1))
	l := a.take(r)
	other.take(r)
	k := a.take(a.ask(name, permits(2, 1)))
	a.refused(a.ask(name, permits(2, 1)))
	a.give(l)
	e.holds(name, k)
}

func acquireAtOnce(e *env) {
	const n, rounds = 8, 5
	a := e.client()
	clients := []*client{a, e.other(a, &client{e: e, b: e.open(), sess: a.sess})}
	for range rounds {
		name := e.name()
		r := a.ask(name)
		r.Wait = true
		tokens := make([]fence.Token, n)
		e.times(n, func(i int) { tokens[i] = clients[i%len(clients)].take(r).Token })
		for _, t := range tokens {
			if t != tokens[0] {
				e.Fatalf("the same Acquire, sent %d times concurrently, returned the tokens %v", n, tokens)
			}
		}
		e.holds(name, lease{AcquireRequest: r, Grant: backend.Grant{Token: tokens[0]}})
		if err := a.releaseHeld(r); err != nil {
			e.Fatalf("Release: %v", err)
		}
		e.free(name)
	}
}

func acquireInQueue(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	first := a.take(a.ask(name))
	r := b.ask(name)
	one := b.join(r)
	behind := a.join(a.ask(name))
	two := b.join(r)
	if info := e.inspect(name); len(info.Waiters) != 2 || info.Waiters[0].Lease != r.Lease {
		e.Fatalf("a repeated Acquire has to keep its first place in the queue; Inspect reports %+v", info.Waiters)
	}
	a.give(first)
	l1, l2 := one.granted(), two.granted()
	if l1.Token != l2.Token {
		e.Fatalf("a repeated Acquire returned the tokens %d and %d", l1.Token, l2.Token)
	}
	e.holds(name, l1)
	behind.waits()
	b.give(l1)
	e.holds(name, behind.granted())
}

func tryKeepsPlace(e *env) {
	a, b := e.client(), e.client()
	for _, opts := range [][]option{nil, {e.timed(e.long())}} {
		name := e.name()
		first := a.take(a.ask(name))
		one, behind := b.join(b.ask(name, opts...)), a.join(a.ask(name))
		r := one.req
		r.Wait = false
		for range 2 {
			b.refused(r)
		}
		if info := e.inspect(name); len(info.Waiters) != 2 || info.Waiters[0].Lease != r.Lease {
			e.Fatalf("a lease that was acquired again without Wait has to keep its place; Inspect returns the waiters %+v", info.Waiters)
		}
		a.give(first)
		b.give(one.granted())
		a.give(behind.granted())
		e.free(name)
	}
}

func oneGivesUp(e *env) {
	a, b := e.client(), e.client()
	for _, leaves := range []int{0, 1} {
		name := e.name()
		first := a.take(a.ask(name))
		r := b.ask(name)
		asked := []*waiter{b.join(r), b.join(r)}
		e.inspect(name) // the second request has been sent by now
		asked[leaves].cancel(errGaveUp)
		asked[leaves].returns(e.soon())
		stays := asked[1-leaves]
		stays.waits()
		a.give(first)
		b.give(stays.granted())
		e.free(name)
	}
}

func adoptPlace(e *env) {
	a, b, c := e.client(), e.client(), e.client()
	for _, opts := range [][]option{nil, {e.timed(e.long())}} {
		name := e.name()
		first := a.take(a.ask(name))
		r := b.ask(name, opts...)
		old := b.join(r)
		behind := a.join(a.ask(name))
		r.Session = c.sess
		adopted := c.start(r)
		if !e.poll(e.soon(), func() bool {
			info := e.inspect(name)
			return len(info.Waiters) == 2 && info.Waiters[0].Lease == r.Lease && info.Waiters[0].Session == c.sess
		}) {
			e.Fatalf("the place in the queue is not that of the new session; Inspect reports %+v", e.inspect(name).Waiters)
		}
		old.cancel(errGaveUp)
		old.returns(e.soon())
		if len(opts) > 0 {
			b.end() // the place no longer belongs to b
		}
		adopted.waits()
		a.give(first)
		l := adopted.granted()
		behind.waits()
		e.holds(name, l)
		if h := e.inspect(name).Holders[0]; !l.Timed && h.Session != c.sess {
			e.Errorf("the lease is that of session %s; it was adopted by %s", h.Session, c.sess)
		}
		c.give(l)
		a.give(behind.granted())
	}
}

func adoptedPlaceGranted(e *env) {
	b := e.client()
	a := e.on(b.b, e.long()) // so that the one who releases knows of the earlier request

	for _, c := range []*client{e.on(b.b, e.long()), e.client()} { // of the same backend value, and of another
		first := a.take(a.ask(e.name()))
		old, adopted := adoptedBy(b, c, first.Name)
		a.give(first)
		c.give(adopted.granted())
		old.fails(backend.ErrLost)
	}
}

func adoptedPlaceEnds(e *env) {
	a, b := e.client(), e.client()
	for _, c := range []*client{e.on(b.b, e.long()), e.client()} {
		first := a.take(a.ask(e.name()))
		old, adopted := adoptedBy(b, c, first.Name)
		c.end()
		adopted.fails(backend.ErrSessionLost)
		old.fails(backend.ErrLost)
		a.give(first)
		b.give(b.take(b.ask(first.Name)))
	}
}

// adoptedBy has a place in the queue pass from the session of b to that of c. It returns both requests.
func adoptedBy(b, c *client, name string) (*waiter, *waiter) {
	e := b.e
	r := b.ask(name)
	old := b.join(r)
	r.Session = c.sess
	adopted := c.start(r)
	if !e.poll(e.soon(), func() bool {
		info := e.inspect(name)
		return len(info.Waiters) == 1 && info.Waiters[0].Session == c.sess
	}) {
		e.Fatalf("the place in the queue is not that of the new session; Inspect reports %+v", e.inspect(name).Waiters)
	}
	return old, adopted
}

func adoptNoLease(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	for _, wait := range []bool{false, true} {
		r := l.AcquireRequest
		r.Session, r.Wait = b.sess, wait
		if g, err := b.acquire(r); !errors.Is(err, backend.ErrLost) {
			e.Fatalf("Acquire of a lease that is held under another session returned (%+v, %v); it has to be ErrLost", g, err)
		}
	}
	e.holds(name, l)
	if e.caps.Bound && e.caps.FIFO { // the place passes to the other session, or is lost for it: it may be granted at that moment
		has := a.join(a.ask(name))
		r := has.req
		r.Session = b.sess
		lost := b.start(r)
		a.give(l)
		if lost.returns(e.soon()); lost.err == nil {
			has, lost = lost, has
		}
		l = has.granted()
		lost.fails(backend.ErrLost)
		has.c.give(l)
	} else {
		a.give(l)
	}
	e.free(name)
	b.give(b.take(b.ask(name)))
	if !e.caps.Timed {
		return
	}
	// A timed lease belongs to no session.
	name = e.name()
	l = a.take(a.ask(name, e.timed(e.long())))
	r := l.AcquireRequest
	r.Session = b.sess
	if again := b.take(r); again.Token != l.Token {
		e.Fatalf("token %d after token %d for one timed lease", again.Token, l.Token)
	}
	r.Session = ""
	again := b.take(r)
	if again.Token != l.Token {
		e.Fatalf("token %d after token %d for one timed lease", again.Token, l.Token)
	}
	e.holds(name, l)
}

func releaseTwice(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	first := a.take(a.ask(name))
	w := b.join(b.ask(name))
	a.give(first)
	l := w.granted()
	again := func() {
		if err := a.release(first.AcquireRequest); !errors.Is(err, backend.ErrLost) {
			e.Errorf("the second Release of one lease: %v; it has to be ErrLost", err)
		}
		e.holds(name, l)
	}
	again()
	a.abandon(first.AcquireRequest)
	again()
	b.give(l)
	if err := b.release(l.AcquireRequest); !errors.Is(err, backend.ErrLost) {
		e.Errorf("the second Release of a lease of a free lock: %v; it has to be ErrLost", err)
	}
	if !e.caps.Permits {
		return
	}
	// The permits of one lease are not released twice.
	name = e.name()
	one, two := a.take(a.ask(name, permits(2, 1))), b.take(b.ask(name, permits(2, 1)))
	a.give(one)
	three := a.take(a.ask(name, permits(2, 1)))
	if err := a.release(one.AcquireRequest); !errors.Is(err, backend.ErrLost) {
		e.Errorf("the second Release of one permit: %v; it has to be ErrLost", err)
	}
	b.refused(b.ask(name, permits(2, 1)))
	e.holds(name, two, three)
}

func openEndTwice(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	if err := a.open(); err != nil {
		e.Fatalf("OpenSession of a session that lives: %v", err)
	}
	e.holds(name, l)
	ctx, cancel := context.WithTimeout(e.ctx, e.soon())
	defer cancel()
	err := b.b.OpenSession(ctx, backend.SessionRequest{ID: a.sess, TTL: e.long()})
	// Where sessions are bound, another value may refuse, or open one that is its own.
	if err != nil && (!e.caps.Bound || !errors.Is(err, backend.ErrSessionLost)) {
		e.Fatalf("OpenSession of a session that lives by another backend value: %v", err)
	}
	e.holds(name, l)
	a.end()
	e.free(name)
	l = b.take(b.ask(name))
	a.end()
	e.holds(name, l)
}

func openOtherTTL(e *env) {
	a := e.client()
	name := e.name()
	l := a.take(a.ask(name))
	ctx, cancel := context.WithTimeout(e.ctx, e.soon())
	defer cancel()
	for _, ttl := range []time.Duration{a.ttl + time.Second, a.ttl - a.ttl/4} {
		if err := a.b.OpenSession(ctx, backend.SessionRequest{ID: a.sess, TTL: ttl, Lost: a.lost}); err != nil {
			e.invalid("OpenSession of a session that lives with a TTL of "+ttl.String(), "ttl", err)
		}
		e.holds(name, l)
		res, err := a.b.Renew(ctx, backend.RenewRequest{Session: a.sess})
		if err != nil || res.SessionLost {
			e.Errorf("Renew of the session returned %+v, %v; it has to live", res, err)
		}
	}
	if again := a.take(l.AcquireRequest); again.Token != l.Token {
		e.Errorf("a repeated Acquire of the lease returned token %d, want %d", again.Token, l.Token)
	}
}

func renewTwice(e *env) {
	a := e.client()
	one, two := e.name(), e.name()
	l, m := a.take(a.ask(one, e.timed(e.long()))), a.take(a.ask(two, e.timed(e.long())))
	ctx, cancel := context.WithTimeout(e.ctx, e.soon())
	defer cancel()
	// A server puts the requests of several callers into one call.
	ask := []backend.TimedRenewal{
		{Name: one, Lease: l.Lease, TTL: e.long()},
		{Name: two, Lease: m.Lease, TTL: e.long()},
		{Name: one, Lease: l.Lease, TTL: e.long()},
		{Name: one, Lease: l.Lease, TTL: e.long() / 2},
	}
	if most := e.caps.MaxRenew; most > 0 && most < len(ask) {
		ask = ask[:most]
	}
	res, err := a.b.Renew(ctx, backend.RenewRequest{Leases: ask})
	if err != nil || len(res.Leases) != len(ask) {
		e.Fatalf("Renew of %d leases, one of them three times, returned %+v, %v", len(ask), res, err)
	}
	for i, r := range res.Leases {
		if r.Err != nil || r.Left <= 0 || r.Left > e.long() {
			e.Errorf("renewal %d of %s returned %+v", i, ask[i].TTL, r)
		}
	}
	e.holds(one, l)
	e.holds(two, m)
}
