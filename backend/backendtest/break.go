package backendtest

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func breakCases() []Case {
	const c10 = "the holder of a lease that an operator broke is notified immediately where the backend can push, else by its next renewal"
	const raised = "a break takes the lock from all its holders and raises the token; waiters stay and the first of them are granted"
	return []Case{
		{ID: "C10", Name: "the-victim-is-told", Rule: c10, Needs: needsSessions, run: victimTold},
		{ID: "C10", Name: "timed-victims-are-told", Rule: c10, Needs: needsTimed, run: timedVictim},
		{ID: "C10", Name: "all-holders-are-broken", Rule: raised, Needs: needsPermits, run: allBroken},
		{ID: "C10", Name: "one-of-the-holders-is-broken", Rule: "a break of one lease takes the lock from no other", Needs: needsSharing, run: oneBroken},
		{ID: "C10", Name: "a-lease-that-holds-nothing-to-break", Rule: "a break of a lease that does not hold the lock changes nobody's", run: otherBroken},
		{ID: "C10", Name: "the-next-in-queue-is-granted", Rule: raised, run: nextAfterBreak},
		{ID: "C10", Name: "nobody-to-break", Rule: "breaking a lock that has no holder succeeds, with no holders in the result", run: nobodyToBreak},
		{ID: "C10", Name: "lost-is-final", Rule: "a lease whose loss was reported is not granted again, or its next loss is reported, too", Needs: needsSessions, run: lostIsFinal},
		{ID: "C10", Name: "a-lost-session-is-told", Rule: "the loss of a session is reported by its next renewal at the latest", Needs: needsSessions, run: lostSessionTold},
	}
}

func victimTold(e *env) {
	const reason = `it hangs: "x" ü`
	a := e.client()
	name, other := e.name(), e.name()
	l, k := a.take(a.ask(name, owner("w7"))), a.take(a.ask(other))
	if res := a.keep(); len(res.Lost) > 0 {
		e.Errorf("nothing was lost; Renew reports %+v", res.Lost)
	}
	res := e.breakLock(name, reason)
	if len(res.Broken) != 1 || res.Broken[0].Lease != l.Lease || res.Broken[0].Token != l.Token || res.Broken[0].Owner != "w7" {
		e.Fatalf("Break reports the victims %+v; it is lease %s with token %d", res.Broken, l.Lease, l.Token)
	}
	if res.Token <= l.Token || !res.Token.Valid() {
		e.Fatalf("Break returned token %d; the victim had %d", res.Token, l.Token)
	}
	e.free(name)
	e.pushed(a, l, reason)
	lost := a.keep().Lost
	if !slices.ContainsFunc(lost, func(x backend.Loss) bool {
		return x.Lease == l.Lease && x.Cause == backend.CauseBroken && x.Reason == reason
	}) {
		e.Errorf("Renew reports the losses %+v; lease %s was broken, reason %q", lost, l.Lease, reason)
	}
	if slices.ContainsFunc(lost, func(x backend.Loss) bool { return x.Lease != l.Lease }) {
		e.Errorf("Renew reports the losses %+v; only %s was lost", lost, l.Lease)
	}
	if err := a.release(l.AcquireRequest); !errors.Is(err, backend.ErrLost) {
		e.Errorf("Release of a broken lease: %v; it has to be ErrLost", err)
	}
	e.holds(other, k)
	if next := a.take(a.ask(name)); next.Token < res.Token {
		e.Errorf("token %d after a break that returned %d", next.Token, res.Token)
	}
}

// pushed checks that the loss is pushed where the backend claims that, and that nothing is
// pushed where it does not.
func (e *env) pushed(c *client, l lease, reason string) {
	if !e.caps.LossPush {
		select {
		case x := <-c.losses:
			e.Errorf("Lost was called with %+v; the backend does not claim LossPush", x)
		default:
		}
		return
	}
	late := time.NewTimer(e.soon())
	defer late.Stop()
	for {
		select {
		case x := <-c.losses:
			switch {
			case x.Lease != l.Lease:
				e.Errorf("Lost was called with %+v; only %s was lost", x, l.Lease)
			case x.Cause != backend.CauseBroken || x.Reason != reason || x.Session != c.sess:
				e.Errorf("Lost was called with %+v; the lease of session %s was broken, reason %q", x, c.sess, reason)
				return
			default:
				return
			}
		case <-late.C:
			e.Errorf("Lost was not called within %s; lease %s was broken", e.soon(), l.Lease)
			return
		}
	}
}

func timedVictim(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name, e.timed(e.long())))
	res := e.breakLock(name, "")
	if len(res.Broken) != 1 || res.Broken[0].Lease != l.Lease || res.Token <= l.Token {
		e.Fatalf("Break returned %+v; the victim is %s with token %d", res, l.Lease, l.Token)
	}
	if r := a.renewLease(l.AcquireRequest, e.long()); !errors.Is(r.Err, backend.ErrLost) {
		e.Errorf("Renew of a broken lease returned %+v; it has to be ErrLost", r)
	}
	next := b.take(b.ask(name))
	if err := a.release(l.AcquireRequest); !errors.Is(err, backend.ErrLost) {
		e.Errorf("Release of a broken lease: %v; it has to be ErrLost", err)
	}
	e.holds(name, next)
}

func allBroken(e *env) {
	const limit = 4
	a, b := e.client(), e.client()
	name := e.name()
	one, two := a.take(a.ask(name, permits(limit, 1))), b.take(b.ask(name, permits(limit, 2)))
	three := a.take(a.ask(name, permits(limit, 1), e.timed(e.long())))
	first, second := b.join(b.ask(name)), a.join(a.ask(name, permits(limit, 1)))
	res := e.breakLock(name, "all")
	broken := slices.EqualFunc(res.Broken, []lease{one, two, three}, func(h backend.Holder, l lease) bool {
		return h.Lease == l.Lease && h.Token == l.Token && h.Permits == l.Permits
	})
	if !broken || res.Token <= three.Token {
		e.Fatalf("Break returned %+v; three were held, with tokens %d, %d, %d", res, one.Token, two.Token, three.Token)
	}
	var next lease
	if e.caps.FIFO {
		next = first.granted()
		second.waits()
	} else {
		queue := []*waiter{first, second}
		next = queue[firstDone(e, queue)].granted()
	}
	if next.Token <= three.Token {
		e.Fatalf("token %d after a break of token %d", next.Token, three.Token)
	}
	if e.caps.Sessions {
		e.pushed(b, two, "all")
	}
}

func oneBroken(e *env) {
	many := permits(3, 1)
	if !e.caps.Permits {
		many = shared
	}
	a, b := e.client(), e.client()
	name := e.name()
	one, two := a.take(a.ask(name, many)), b.take(b.ask(name, many))
	three := a.take(a.ask(name, many))
	w := a.join(a.ask(name))
	res := e.breakLease(name, two.Lease, "only this")
	if len(res.Broken) != 1 || res.Broken[0].Lease != two.Lease || res.Broken[0].Token != two.Token || res.Token <= two.Token {
		e.Fatalf("Break of lease %s with token %d returned %+v", two.Lease, two.Token, res)
	}
	e.holds(name, one, three)
	w.waits()
	if e.caps.Sessions {
		e.pushed(b, two, "only this")
	}
	if err := b.release(two.AcquireRequest); !errors.Is(err, backend.ErrLost) {
		e.Errorf("Release of a broken lease: %v; it has to be ErrLost", err)
	}
	if got := a.keep().Lost; len(got) > 0 {
		e.Errorf("Renew reports the losses %+v; another's lease was broken", got)
	}
	if res := e.breakLease(name, two.Lease, "again"); len(res.Broken) > 0 {
		e.Errorf("the lease was broken before; Break returned %+v", res)
	}
	e.breakLease(name, one.Lease, "the next")
	e.breakLease(name, three.Lease, "the last")
	if next := w.granted(); next.Token <= three.Token {
		e.Errorf("token %d after a break of token %d", next.Token, three.Token)
	}
}

func otherBroken(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	w := b.join(b.ask(name))
	for _, lease := range []backend.LeaseID{backend.NewLeaseID(), w.req.Lease} {
		if res := e.breakLease(name, lease, "a mistake"); len(res.Broken) > 0 {
			e.Fatalf("Break of lease %s, which does not hold the lock, returned %+v", lease, res)
		}
	}
	e.holds(name, l)
	w.waits()
	a.give(l)
	w.granted()
}

func nextAfterBreak(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	one, two := b.join(b.ask(name)), a.join(a.ask(name))
	queue := []*waiter{one, two}
	e.breakLock(name, "next")
	i := firstDone(e, queue)
	next := queue[i].granted()
	if next.Token <= l.Token {
		e.Fatalf("token %d after a break of token %d", next.Token, l.Token)
	}
	e.holds(name, next)
	if err := a.release(l.AcquireRequest); !errors.Is(err, backend.ErrLost) {
		e.Errorf("Release of a broken lease: %v; it has to be ErrLost", err)
	}
	queue[1-i].waits()
	e.breakLock(name, "next")
	last := queue[1-i].granted()
	if last.Token <= next.Token {
		e.Fatalf("token %d after a break of token %d", last.Token, next.Token)
	}
	e.holds(name, last)
}

func nobodyToBreak(e *env) {
	a := e.client()
	name := e.name()
	if res := e.breakLock(name, "never held"); len(res.Broken) > 0 {
		e.Errorf("the lock was never held; Break returned %+v", res)
	}
	l := a.take(a.ask(name))
	a.give(l)
	res := e.breakLock(name, "free")
	if len(res.Broken) > 0 || res.Token <= l.Token {
		e.Errorf("the lock is free and the last token was %d; Break returned %+v", l.Token, res)
	}
	e.free(name)
	if next := a.take(a.ask(name)); next.Token <= l.Token || next.Token < res.Token {
		e.Errorf("token %d after token %d and a break that returned %d", next.Token, l.Token, res.Token)
	}
}

// lostIsFinal repeats the acquire of a lease that was reported as broken. A backend need not
// remember it. But if it grants it again, it must report the next break as well.
func lostIsFinal(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	e.breakLock(name, "first")
	e.pushed(a, l, "first")
	a.toldBy(l, "first")
	for i := range 4 {
		r := l.AcquireRequest
		r.Wait = i%2 == 1
		_, err := a.acquire(r)
		if errors.Is(err, backend.ErrLost) {
			continue
		}
		if err != nil {
			e.Fatalf("Acquire of %s, whose loss was reported: %v; want ErrLost", describe(r), err)
		}
		e.breakLock(name, "second")
		e.pushed(a, l, "second")
		a.toldBy(l, "second")
	}
	e.free(name)
	b.give(b.take(b.ask(name)))
}

// toldBy checks that the next renewal reports the break of the lease.
func (c *client) toldBy(l lease, reason string) {
	lost := c.keep().Lost
	if !slices.ContainsFunc(lost, func(x backend.Loss) bool { return x.Lease == l.Lease && x.Reason == reason }) {
		c.e.Errorf("Renew reports the losses %+v; lease %s was broken, reason %q", lost, l.Lease, reason)
	}
}

func lostSessionTold(e *env) {
	a, b := e.client(), e.mortal()
	name := e.name()
	b.take(b.ask(name))
	a.start(a.ask(name)).freed(b.opened, e.ttl())
	if res := b.renew(backend.RenewRequest{Session: b.sess}); !res.SessionLost {
		e.Fatalf("Renew of a session that has expired does not report it: %+v", res)
	}
	if res := a.renew(backend.RenewRequest{Session: a.sess}); res.SessionLost || len(res.Lost) > 0 {
		e.Errorf("Renew of a session that lives and lost nothing reports %+v", res)
	}
	if !e.caps.LossPush && len(b.losses) > 0 {
		e.Errorf("Lost was called; the backend does not claim LossPush")
	}
}
