package backendtest

import (
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func lateCases() []Case {
	const c14 = "a grant whose time already ran out is never returned as held"
	return []Case{
		{ID: "C14", Name: "an-expired-lease-is-not-granted-again", Rule: c14, Needs: needsTimed, run: expiredNotGranted},
		{ID: "C14", Name: "a-lease-of-a-dead-session-is-not-granted-again", Rule: c14, Needs: needsSessions, run: deadSessionNotGranted},
		{ID: "C14", Name: "short-leases-are-held-or-lost", Rule: c14, Needs: needsTimed, run: shortLeases},
	}
}

// expiredNotGranted requests a lease again that has expired. A backend that remembers it
// returns ErrLost, and one that does not makes a new grant.
func expiredNotGranted(e *env) {
	a := e.client()
	name := e.name()
	l := a.take(a.ask(name, e.timed(e.ttl())))
	next := a.start(a.ask(name)).freed(l.asked, e.ttl())
	r := l.AcquireRequest
	for _, free := range []bool{false, true} {
		if free {
			a.give(next)
		}
		g, err := a.acquire(r)
		switch {
		case err == nil && !free:
			e.Fatalf("Acquire of a lease that expired returned %+v while another held the lock", g)
		case err == nil && g.Token <= next.Token:
			e.Fatalf("Acquire of a lease that expired returned token %d; it had %d, and the one after it %d", g.Token, l.Token, next.Token)
		case err != nil && !errors.Is(err, backend.ErrLost) && !errors.Is(err, backend.ErrHeld):
			e.Fatalf("Acquire of a lease that expired: %v", err)
		}
	}
}

func deadSessionNotGranted(e *env) {
	a, b := e.client(), e.mortal()
	name := e.name()
	l := b.take(b.ask(name))
	next := a.start(a.ask(name)).freed(b.opened, e.ttl())
	for range 2 {
		if g, err := b.acquire(l.AcquireRequest); !errors.Is(err, backend.ErrSessionLost) && !errors.Is(err, backend.ErrLost) {
			e.Fatalf("Acquire of a lease whose session is dead returned (%+v, %v); it has to be ErrSessionLost", g, err)
		}
		if next.Token != 0 {
			e.holds(name, next)
			a.give(next)
			next.Token = 0
		}
	}
	e.free(name)
}

// shortLeases passes leases of the shortest TTL along a queue: a lease that is returned as held
// has time left, counted on our own clock.
func shortLeases(e *env) {
	const n = 8
	ttl := e.caps.MinTTL
	rounds := min(n, 1+int(10*time.Second/(ttl+e.caps.ExpiryLag)))
	a, b := e.client(), e.client()
	name := e.name()
	var held, lost int
	for range rounds {
		w := b.start(b.ask(name, e.timed(ttl)))
		w.returns(time.Duration(n)*(ttl+e.caps.ExpiryLag) + e.soon())
		switch {
		case w.err == nil:
			held++
			if w.grant.Left <= 0 || w.grant.Left > ttl || w.grant.Asked.Before(w.from) {
				e.Fatalf("a lease of %s was granted with %+v", ttl, w.grant)
			}
		case errors.Is(w.err, backend.ErrLost):
			lost++
		default:
			e.Fatalf("Acquire of a lease of %s: %v", ttl, w.err)
		}
	}
	e.Logf("%d leases of %s were held, %d were lost on the way", held, ttl, lost)
	a.start(a.ask(name)).grantedWithin(ttl + e.caps.ExpiryLag + e.soon())
}
