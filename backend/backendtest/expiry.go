package backendtest

import (
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func expiryCases() []Case {
	const c4 = "a lease that is not renewed becomes free no earlier than its TTL after the backend received it, and no later than TTL + ExpiryLag"
	const c9 = "the backend never reports more time than is left"
	return []Case{
		{ID: "C4", Name: "session-lease-runs-out", Rule: c4, Needs: needsSessions, run: sessionRunsOut},
		{ID: "C4", Name: "timed-lease-runs-out", Rule: c4, Needs: needsTimed, run: timedRunsOut},
		{ID: "C4", Name: "shared-lease-runs-out", Rule: c4, Needs: func(c caps) bool { return c.Shared && c.Timed }, run: sharedRunsOut},
		{ID: "C4", Name: "found-without-waiting", Rule: c4, run: foundWithoutWaiting},
		{ID: "C4", Name: "timed-lease-counts-from-its-grant", Rule: "the TTL of a timed lease that waited counts from its grant", Needs: func(c caps) bool { return c.FIFO && c.Timed }, run: countsFromGrant},
		{ID: "C4", Name: "renewal-counts-from-its-receipt", Rule: "a renewal extends from the moment the backend received it", Needs: needsTimed, run: renewalCounts},
		{ID: "C4", Name: "session-renewal-keeps-all", Rule: "one renewal of the session keeps all its leases and its places in the queue", Needs: needsSessions, run: sessionRenewal},
		{ID: "C4", Name: "renewal-shortens", Rule: "a TTL shorter than what is left shortens a timed lease", Needs: needsTimed, run: renewalShortens},
		{ID: "C4", Name: "renewal-keeps-the-ttl", Rule: "a renewal without a TTL is for the TTL that the lease has", Needs: needsTimed, run: renewalKeeps},
		{ID: "C4", Name: "opening-again-extends", Rule: "a session ends TTL after the newest OpenSession or Renew of it", Needs: needsSessions, run: openingExtends},
		{ID: "C4", Name: "timed-lease-outlives-its-session", Rule: "a timed lease outlives the session and the process that took it", Needs: func(c caps) bool { return c.Sessions && c.Timed }, run: timedOutlives},
		{ID: "C4", Name: "a-grant-to-a-dead-waiter-ends", Rule: c4, Needs: func(c caps) bool { return c.FIFO && c.Timed }, run: unseenGrant},
		{ID: "C9", Name: "left-is-all-there-is", Rule: "a grant of a timed lease reports all the time that it has", Needs: needsTimed, run: leftIsAll},
		{ID: "C9", Name: "left-is-never-too-much", Rule: c9, Needs: needsTimed, run: leftNeverTooMuch},
	}
}

func sessionRunsOut(e *env) {
	a, b := e.client(), e.mortal()
	name, other := e.name(), e.name()
	l := b.take(b.ask(name))
	b.take(b.ask(other))
	w, x := a.start(a.ask(name)), a.start(a.ask(other))
	next := w.freed(b.opened, e.ttl())
	x.freed(b.opened, e.ttl())
	if next.Token <= l.Token {
		e.Fatalf("token %d after token %d", next.Token, l.Token)
	}
	e.holds(name, next)
}

func timedRunsOut(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := b.take(b.ask(name, e.timed(e.ttl())))
	next := a.start(a.ask(name)).freed(l.asked, e.ttl())
	e.holds(name, next)
}

func sharedRunsOut(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	first := b.take(b.ask(name, shared, e.timed(e.ttl())))
	second := b.take(b.ask(name, shared, e.timed(2*e.ttl())))
	third := a.take(a.ask(name, shared))
	w := a.start(a.ask(name))
	e.until(first.asked.to.Add(e.ttl() + e.caps.ExpiryLag))
	a.give(third)
	w.freed(second.asked, 2*e.ttl())
}

// foundWithoutWaiting retries again and again, as a client does that does not wait in the
// queue.
func foundWithoutWaiting(e *env) {
	a := e.client()
	name := e.name()
	_, _, from := e.brief(name)
	latest := from.to.Add(e.ttl() + e.caps.ExpiryLag + e.h.Slack)
	got := e.poll(time.Until(latest), func() bool {
		r := a.ask(name)
		_, err := a.acquire(r)
		switch {
		case err == nil && time.Now().Before(from.from.Add(e.ttl())):
			e.Fatalf("%s was granted before the lease's TTL of %s had elapsed", describe(r), e.ttl())
		case err != nil && !errors.Is(err, backend.ErrHeld):
			e.Fatalf("Acquire of %s: %v", describe(r), err)
		}
		return err == nil
	})
	if !got {
		e.Fatalf("the lock is not free later than TTL %s + lag %s + slack %s", e.ttl(), e.caps.ExpiryLag, e.h.Slack)
	}
}

func countsFromGrant(e *env) {
	a, b, c := e.client(), e.client(), e.client()
	name := e.name()
	first := a.take(a.ask(name))
	w := b.join(b.ask(name, e.timed(e.ttl())))
	x := c.join(c.ask(name))
	e.until(time.Now().Add(e.ttl() / 2))
	from := time.Now()
	a.give(first)
	l := w.granted()
	x.freed(span{from, l.asked.to}, e.ttl())
}

// unseenGrant grants a lease with an end to a waiter that dies. The hand-over does not concern the waiter behind
// it, in another process; the end of the grant does.
func unseenGrant(e *env) {
	a, b, c := e.client(), e.client(), e.client()
	name := e.name()
	held := a.take(a.ask(name))
	next := b.join(b.ask(name, e.timed(e.ttl())))
	behind := c.join(c.ask(name))
	from := time.Now()
	a.give(held)
	l := next.granted()
	if err := b.b.Close(); err != nil {
		e.Fatalf("Close: %v", err)
	}
	behind.freed(span{from, l.asked.to}, e.ttl())
}

func renewalCounts(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := b.take(b.ask(name, e.timed(e.ttl())))
	w := a.start(a.ask(name))
	e.until(l.asked.from.Add(e.ttl() / 2))
	from := time.Now()
	r := b.renewLease(l.AcquireRequest, e.ttl())
	if r.Err != nil {
		b.excuse(l.AcquireRequest, l.asked.from, r.Err)
		e.Fatalf("Renew of %s: %v", describe(l.AcquireRequest), r.Err)
	}
	if r.Token != l.Token {
		e.Fatalf("Renew reports token %d; the lease has token %d", r.Token, l.Token)
	}
	w.freed(span{from, time.Now()}, e.ttl())
}

func sessionRenewal(e *env) {
	a, b := e.client(), e.mortal()
	names := []string{e.name(), e.name(), e.name()}
	place := e.name()
	theirs := a.take(a.ask(place))
	own := b.join(b.ask(place))
	var waiters []*waiter
	for _, n := range names {
		b.take(b.ask(n))
		waiters = append(waiters, a.start(a.ask(n)))
	}
	const renewals = 4
	for range renewals {
		e.until(b.opened.from.Add(e.ttl() / 3))
		b.keep()
		for _, w := range waiters {
			select {
			case <-w.done:
				if !w.at.Before(b.opened.from) {
					e.busy(errTooBusy)
				}
				e.Fatalf("a lease was free %s after its session was renewed; the TTL is %s", time.Since(b.opened.from), e.ttl())
			default:
			}
		}
	}
	a.give(theirs)
	own.granted()
	for _, w := range waiters {
		w.freed(b.opened, e.ttl())
	}
}

func renewalShortens(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := b.take(b.ask(name, e.timed(e.long())))
	w := a.start(a.ask(name))
	from := time.Now()
	r := b.renewLease(l.AcquireRequest, e.ttl())
	if r.Err != nil || r.Left > e.ttl() {
		b.excuse(e.short(l), from, r.Err)
		e.Fatalf("Renew of %s for %s returned %+v", describe(l.AcquireRequest), e.ttl(), r)
	}
	w.freed(span{from, time.Now()}, e.ttl())
}

// short returns the request for the lease as if it was for the short TTL, to which a renewal has shortened it.
func (e *env) short(l lease) backend.AcquireRequest {
	r := l.AcquireRequest
	r.TTL = e.ttl()
	return r
}

// renewalKeeps renews without a TTL: leases that were granted in every way, and one that was renewed with
// another TTL in between.
func renewalKeeps(e *env) {
	a, b := e.client(), e.client()
	whole := func(how string, l lease) {
		const coarse = 2 * time.Second
		if r := b.renewLease(l.AcquireRequest, 0); r.Err != nil || r.Token != l.Token || r.Left > e.long() || r.Left < e.long()-coarse-time.Since(l.asked.from) {
			e.Fatalf("%s: Renew without a TTL of %s, which has token %d, returned %+v", how, describe(l.AcquireRequest), l.Token, r)
		}
	}
	name := e.name()
	l := a.take(a.ask(name, e.timed(e.long())))
	whole("granted", l)
	if e.caps.FIFO {
		w := b.join(b.ask(name, e.timed(e.long())))
		whole("granted, and waited for", l)
		a.give(l)
		l = w.granted()
		whole("granted from the queue", l)
	}
	if e.caps.Shared {
		name := e.name()
		a.take(a.ask(name, shared))
		whole("shared", b.take(b.ask(name, shared, e.timed(e.long()))))
	}
	from := time.Now()
	if r := b.renewLease(l.AcquireRequest, e.ttl()); r.Err != nil {
		b.excuse(e.short(l), from, r.Err)
		e.Fatalf("Renew of %s for %s returned %+v", describe(l.AcquireRequest), e.ttl(), r)
	}
	again := time.Now()
	r := b.renewLease(l.AcquireRequest, 0)
	if r.Err != nil || r.Left > e.ttl() {
		b.excuse(e.short(l), from, r.Err)
		e.Fatalf("Renew without a TTL, after one for %s, returned %+v", e.ttl(), r)
	}
	a.start(a.ask(name)).freed(span{again, time.Now()}, e.ttl())
}

func openingExtends(e *env) {
	a, b := e.client(), e.mortal()
	name := e.name()
	b.take(b.ask(name))
	w := a.start(a.ask(name))
	first := b.opened
	e.until(first.from.Add(e.ttl() / 2))
	if err := b.open(); err != nil {
		b.excuse(backend.AcquireRequest{}, first.from, err)
		e.Fatalf("OpenSession of a session that lives: %v", err)
	}
	w.freed(b.opened, e.ttl())
}

func timedOutlives(e *env) {
	a := e.client()
	b := e.on(e.open(), e.long())
	name, waited := e.name(), e.name()
	l := b.take(b.ask(name, e.timed(e.long())))
	held := a.take(a.ask(waited))
	w := b.join(b.ask(waited, e.timed(e.long())))
	a.give(held)
	m := w.granted()
	b.end()
	if err := b.b.Close(); err != nil {
		e.Fatalf("Close: %v", err)
	}
	a.refused(a.ask(name))
	a.refused(a.ask(waited))
	e.holds(name, l)
	e.holds(waited, m)
	if r := a.renewLease(l.AcquireRequest, e.long()); r.Err != nil || r.Token != l.Token {
		e.Fatalf("Renew of %s by another process returned %+v", describe(l.AcquireRequest), r)
	}
	a.give(l)
	a.give(m)
	e.free(name)
}

// leftIsAll checks the time left that is reported for leases granted in every way.
func leftIsAll(e *env) {
	a, b := e.client(), e.client()
	since := func(from time.Time, how string, l lease) {
		const coarse = 2 * time.Second
		if least := e.long() - time.Since(from) - coarse; l.Left < least {
			e.Errorf("%s: Grant.Left is %s for a TTL of %s", how, l.Left, e.long())
		}
	}
	whole := func(how string, l lease) { since(l.asked.from, how, l) }
	of := func(opts ...option) []option { return append(opts, e.timed(e.long())) }
	name := e.name()
	l := a.take(a.ask(name, of()...))
	whole("at once", l)
	since(l.asked.from, "asked twice", a.take(l.AcquireRequest))
	if e.caps.FIFO {
		w := b.join(b.ask(name, of()...))
		a.give(l)
		whole("waited", w.granted())
	}
	if e.caps.Shared {
		name := e.name()
		a.take(a.ask(name, shared))
		whole("beside another reader", b.take(b.ask(name, of(shared)...)))
	}
	if e.caps.Permits {
		name := e.name()
		a.take(a.ask(name, permits(3, 1)))
		whole("beside another permit", b.take(b.ask(name, of(permits(3, 2))...)))
	}
}

// leftNeverTooMuch compares the reported time left with when the lock becomes free.
func leftNeverTooMuch(e *env) {
	e.all(func() {
		a, b := e.client(), e.client()
		name := e.name()
		l := b.take(b.ask(name, e.timed(e.ttl())))
		notBefore(e, a.start(a.ask(name)), l.Asked.Add(l.Left), "Grant")
	}, func() {
		a, b := e.client(), e.client()
		name := e.name()
		first := a.take(a.ask(name))
		w := b.join(b.ask(name, e.timed(e.ttl())))
		a.give(first)
		l := w.granted()
		notBefore(e, a.start(a.ask(name)), l.Asked.Add(l.Left), "Grant of one that waited")
	}, func() {
		a, b := e.client(), e.client()
		name := e.name()
		l := b.take(b.ask(name, e.timed(e.ttl())))
		w := a.start(a.ask(name))
		e.until(l.asked.from.Add(e.ttl() / 3))
		from := time.Now()
		again, err := b.acquire(l.AcquireRequest)
		if err != nil || again.Token != l.Token {
			// The time that the call took is subtracted from the time left that it reports.
			b.excuse(l.AcquireRequest, l.asked.from.Add(-time.Since(from)), backend.ErrLost)
			e.Fatalf("the same Acquire, repeated %s later, returned %+v, %v; the lease is held for %s with token %d",
				time.Since(l.asked.from), again, err, e.ttl(), l.Token)
		}
		if again.Asked.Before(from) {
			e.Fatalf("Grant.Asked of a second call is %s before that call", from.Sub(again.Asked))
		}
		notBefore(e, w, again.Asked.Add(again.Left), "Grant of one that asked twice")
	}, func() {
		// Whole seconds, so that no store has to round up.
		ttl := max(2*time.Second, (e.ttl() + time.Second - 1).Truncate(time.Second))
		b := e.client()
		l := b.take(b.ask(e.name(), e.timed(ttl)))
		e.until(l.asked.to.Add(ttl / 4))
		from := time.Now()
		again, err := b.acquire(l.AcquireRequest)
		over := time.Since(l.asked.from)+time.Since(from) >= ttl
		switch {
		case over && (errors.Is(err, backend.ErrLost) || again.Token > l.Token): // the machine was slow
		case err != nil:
			e.Errorf("the repeated Acquire: %v", err)
		case over && again.Left <= time.Millisecond: // or in the last second of a store that counts those
		case again.Asked.Add(again.Left).After(l.asked.to.Add(ttl + ttl/20)):
			e.Errorf("the repeated Acquire returned %s from its second call on, and a quarter of the %s of the lease had elapsed", again.Left, ttl)
		}
	}, func() {
		a, b := e.client(), e.client()
		name := e.name()
		l := b.take(b.ask(name, e.timed(2*e.ttl())))
		w := a.start(a.ask(name))
		from := time.Now()
		r := b.renewLease(l.AcquireRequest, e.ttl())
		if r.Err != nil || r.Left <= 0 || r.Left > e.ttl() {
			b.excuse(l.AcquireRequest, l.asked.from, r.Err)
			b.excuse(e.short(l), from, r.Err)
			if r.Err == nil && r.Left <= 0 && time.Since(from) >= e.ttl() {
				e.busy(errTooBusy)
			}
			e.Fatalf("Renew of %s for %s returned %+v", describe(l.AcquireRequest), e.ttl(), r)
		}
		notBefore(e, w, from.Add(r.Left), "Renewal")
	})
}

// notBefore waits for the grant and checks that the reported time left was not too long.
func notBefore(e *env, w *waiter, ends time.Time, what string) {
	w.grantedWithin(e.ttl() + e.caps.ExpiryLag + 2*e.h.Slack)
	if early := ends.Sub(w.at); early > 0 {
		e.Fatalf("%s.Left was too long by %s or more: the next waiter was granted before it had elapsed", what, early)
	}
}
