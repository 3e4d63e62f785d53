package backendtest

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func identityCases() []Case {
	const c5 = "only the lease ID renews or releases; a stale one gets ErrLost and changes nothing"
	const final = "lost is final: a renewal never creates or revives"
	return []Case{
		{ID: "C5", Name: "strangers-cannot-release", Rule: c5, run: strangersRelease},
		{ID: "C1", Name: "one-store-has-one-id", Rule: "all values of a store that has an ID report the same one, once it has answered", run: oneStoreID},
		{ID: "C5", Name: "strangers-cannot-renew", Rule: c5, Needs: needsTimed, run: strangersRenew},
		{ID: "C5", Name: "stale-release-harms-no-successor", Rule: c5, run: staleRelease},
		{ID: "C5", Name: "renewal-never-revives", Rule: final, Needs: needsTimed, run: renewalRevives},
		{ID: "C5", Name: "renewal-after-the-end", Rule: final, Needs: needsTimed, run: renewalAfterTheEnd},
		{ID: "C5", Name: "renewal-never-creates", Rule: final, Needs: needsTimed, run: renewalCreates},
		{ID: "C5", Name: "renewals-are-answered-one-by-one", Rule: "Renew has one result for each lease asked for, in the same order", Needs: needsTimed, run: renewalsInOrder},
		{ID: "C5", Name: "only-timed-leases-are-renewed", Rule: "the renewal of a lease that is not timed, or only in the queue, is ErrLost", Needs: func(c caps) bool { return c.Sessions && c.Timed }, run: onlyTimedRenewed},
		{ID: "C5", Name: "an-expired-session-never-revives", Rule: "a session never revives: once it has expired its ID is dead", Needs: needsSessions, run: expiredSession},
		{ID: "C5", Name: "an-ended-session-never-revives", Rule: "after EndSession the ID is dead", Needs: needsSessions, run: endedSession},
		{ID: "C5", Name: "an-unknown-session-is-lost", Rule: "a call under a session that does not exist gets ErrSessionLost", Needs: needsSessions, run: unknownSession},
	}
}

func strangersRelease(e *env) {
	a, b := e.client(), e.client()
	name, other := e.name(), e.name()
	r := a.ask(name)
	r.Lease = "0123456789abcdefABCDEF_-"
	l := a.take(r)
	k := a.take(a.ask(other))
	for _, lease := range []backend.LeaseID{
		backend.NewLeaseID(), r.Lease[:16], r.Lease[:23], r.Lease[1:], r.Lease + "x", "0123456789ABCDEFabcdef_-", k.Lease,
	} {
		wrong := r
		wrong.Lease = lease
		if err := b.release(wrong); !errors.Is(err, backend.ErrLost) {
			e.Errorf("Release of %s, which has no holder: %v; want ErrLost", lease, err)
		}
		e.holds(name, l)
	}
	for _, c := range []*client{a, b} {
		wrong := backend.AcquireRequest{Name: other, Lease: r.Lease, Session: c.sess}
		if err := c.release(wrong); !errors.Is(err, backend.ErrLost) {
			e.Errorf("Release of a lease under the name of another lock: %v; it has to be ErrLost", err)
		}
	}
	wrong := b.ask(name)
	b.abandon(wrong)
	e.holds(name, l)
	e.holds(other, k)
	a.give(l)
}

func oneStoreID(e *env) {
	a, b := e.client(), e.client()
	one, ok := a.b.(backend.Identified)
	if !ok {
		return
	}
	other := b.b.(backend.Identified) //nolint:forcetypeassert // of the same store
	a.give(a.take(a.ask(e.name())))
	b.give(b.take(b.ask(e.name())))
	if id := one.StoreID(); id == "" || id != other.StoreID() {
		e.Errorf("the IDs are %q and %q", id, other.StoreID())
	}
}

func strangersRenew(e *env) {
	a := e.client()
	name, other := e.name(), e.name()
	l := a.take(a.ask(name, e.timed(e.long())))
	for _, r := range []backend.AcquireRequest{{Name: name, Lease: backend.NewLeaseID()}, {Name: name, Lease: l.Lease + "x"}, {Name: other, Lease: l.Lease}} {
		if x := a.renewLease(r, e.ttl()); !errors.Is(x.Err, backend.ErrLost) {
			e.Errorf("Renew of lease %s of %q, which is not held, returned %+v; want ErrLost", r.Lease, r.Name, x)
		}
	}
	if h := e.inspect(name).Holders; len(h) != 1 || h[0].Left <= e.ttl() && e.long() > 2*e.ttl() {
		e.Errorf("the renewal of a stranger changed the lease: %+v", h)
	}
	e.free(other)
}

func staleRelease(e *env) {
	a := e.client()
	name := e.name()
	b, stale, from := e.brief(name)
	l := a.start(a.ask(name)).freed(from, e.ttl())
	if err := b.release(stale.AcquireRequest); !errors.Is(err, backend.ErrLost) {
		e.Errorf("Release of a lease that expired: %v; it has to be ErrLost", err)
	}
	e.holds(name, l)
	b.abandon(stale.AcquireRequest)
	e.holds(name, l)
	c := e.client()
	c.refused(c.ask(name))
	if !e.caps.Timed {
		return
	}
	if x := b.renewLease(stale.AcquireRequest, e.long()); !errors.Is(x.Err, backend.ErrLost) {
		e.Errorf("Renew of a lease that expired returned %+v; it has to be ErrLost", x)
	}
	e.holds(name, l)
}

// renewalRevives renews leases that have ended, while the lock is free, held, and free again
// after other leases were held.
func renewalRevives(e *env) {
	a, b := e.client(), e.client()
	expired, released, broken := e.name(), e.name(), e.name()
	x := b.take(b.ask(expired, e.timed(e.ttl())))
	y := b.take(b.ask(released, e.timed(e.long())))
	z := b.take(b.ask(broken, e.timed(e.long())))
	b.give(y)
	e.breakLock(broken, "test")
	l := a.start(a.ask(expired)).freed(x.asked, e.ttl())
	revive := func(when string) {
		for _, r := range []backend.AcquireRequest{x.AcquireRequest, y.AcquireRequest, z.AcquireRequest} {
			if res := b.renewLease(r, e.long()); !errors.Is(res.Err, backend.ErrLost) {
				e.Fatalf("Renew of %s, which has ended, returned %+v %s; want ErrLost", describe(r), res, when)
			}
		}
	}
	revive("while another holds it")
	e.holds(expired, l)
	e.free(released)
	e.free(broken)
	a.give(l)
	revive("after another came and went")
	for _, name := range []string{expired, released, broken} {
		e.free(name)
		a.give(a.take(a.ask(name)))
	}
}

// renewalAfterTheEnd renews a lease that expired while no client used the lock.
func renewalAfterTheEnd(e *env) {
	a := e.client()
	x := a.take(a.ask(e.name(), e.timed(e.ttl())))
	e.until(x.asked.to.Add(e.ttl() + e.caps.ExpiryLag))
	if res := a.renewLease(x.AcquireRequest, e.long()); !errors.Is(res.Err, backend.ErrLost) {
		e.Fatalf("Renew of %s, %s after its end, returned %+v; it has to be ErrLost", describe(x.AcquireRequest), time.Since(x.asked.to.Add(e.ttl())), res)
	}
	e.free(x.Name)
}

func renewalCreates(e *env) {
	a := e.client()
	name := e.name()
	r := a.ask(name, e.timed(e.long()))
	if x := a.renewLease(r, e.long()); !errors.Is(x.Err, backend.ErrLost) {
		e.Fatalf("Renew of a lease that never existed returned %+v; it has to be ErrLost", x)
	}
	e.free(name)
	a.give(a.take(a.ask(name)))
}

func renewalsInOrder(e *env) {
	const n = 7
	a := e.client()
	var req backend.RenewRequest
	var want []lease
	for i := range n {
		if e.caps.MaxRenew > 0 && i == e.caps.MaxRenew {
			break
		}
		l := lease{AcquireRequest: a.ask(e.name(), e.timed(e.long()))}
		if i%3 != 1 {
			l = a.take(l.AcquireRequest)
		}
		want = append(want, l)
		req.Leases = append(req.Leases, backend.TimedRenewal{Name: l.Name, Lease: l.Lease, TTL: e.long() - time.Duration(i)*time.Second})
	}
	for i, r := range a.renew(req).Leases {
		ttl := req.Leases[i].TTL
		switch {
		case want[i].Token == 0 && !errors.Is(r.Err, backend.ErrLost):
			e.Errorf("result %d, of a lease that never existed, is %+v", i, r)
		case want[i].Token != 0 && (r.Err != nil || r.Token != want[i].Token || r.Left <= 0 || r.Left > ttl):
			e.Errorf("result %d is %+v; the lease has token %d and was renewed for %s", i, r, want[i].Token, ttl)
		}
	}
}

func onlyTimedRenewed(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	w := b.join(b.ask(name, e.timed(e.long())))
	for _, r := range []backend.AcquireRequest{l.AcquireRequest, w.req} {
		if x := b.renewLease(r, e.long()); !errors.Is(x.Err, backend.ErrLost) {
			e.Errorf("Renew of %s returned %+v; it has to be ErrLost", describe(r), x)
		}
	}
	e.holds(name, l)
	w.waits()
}

func expiredSession(e *env) {
	a, b := e.client(), e.mortal()
	name, other := e.name(), e.name()
	l := b.take(b.ask(name))
	next := a.start(a.ask(name)).freed(b.opened, e.ttl())
	b.dead(other)
	if err := b.release(l.AcquireRequest); !errors.Is(err, backend.ErrLost) && !errors.Is(err, backend.ErrSessionLost) {
		e.Errorf("Release of a lease whose session has expired: %v; it has to be ErrLost", err)
	}
	e.holds(name, next)
	a.give(next)
	b.dead(other)
	e.free(name)
	b.end() // success
	b.dead(other)
}

// dead checks that the session cannot be used for anything.
func (c *client) dead(name string) {
	e := c.e
	if res := c.renew(backend.RenewRequest{Session: c.sess}); !res.SessionLost {
		e.Errorf("Renew of a dead session does not report that it is lost")
	}
	if err := c.open(); !errors.Is(err, backend.ErrSessionLost) {
		e.Errorf("OpenSession of a dead session: %v; it has to be ErrSessionLost", err)
	}
	for _, wait := range []bool{false, true} {
		r := c.ask(name)
		r.Wait = wait
		if g, err := c.acquire(r); !errors.Is(err, backend.ErrSessionLost) {
			e.Errorf("Acquire under a dead session returned (%+v, %v); it has to be ErrSessionLost", g, err)
		}
		r = c.ask(name, e.timed(e.long()))
		r.Wait = wait
		if g, err := c.acquire(r); !errors.Is(err, backend.ErrSessionLost) {
			e.Errorf("Acquire of a timed lease under a dead session returned (%+v, %v); it has to be ErrSessionLost", g, err)
		}
	}
	e.free(name)
	e.endIfFailed()
}

func endedSession(e *env) {
	a, b := e.client(), e.client()
	name, other := e.name(), e.name()
	b.take(b.ask(name))
	b.end()
	e.free(name)
	b.dead(other)
	l := a.take(a.ask(name))
	b.dead(other)
	b.end()
	e.holds(name, l)
	if e.caps.Bound {
		return
	}
	// Another process does not revive it either.
	ctx, cancel := context.WithTimeout(e.ctx, e.soon())
	defer cancel()
	if err := a.b.OpenSession(ctx, backend.SessionRequest{ID: b.sess, TTL: e.long()}); !errors.Is(err, backend.ErrSessionLost) {
		e.Errorf("OpenSession of a dead session by another process: %v; it has to be ErrSessionLost", err)
	}
}

func unknownSession(e *env) {
	a := e.client()
	name := e.name()
	x := &client{e: e, b: a.b, sess: backend.NewSessionID()}
	for _, opts := range [][]option{nil, {e.timed(e.long())}} {
		for _, wait := range []bool{false, true} {
			r := x.ask(name, opts...)
			r.Wait = wait
			if g, err := x.acquire(r); !errors.Is(err, backend.ErrSessionLost) {
				e.Errorf("Acquire of %s under an unknown session returned (%+v, %v); it has to be ErrSessionLost", describe(r), g, err)
			}
		}
	}
	if res := x.renew(backend.RenewRequest{Session: x.sess}); !res.SessionLost {
		e.Errorf("Renew of an unknown session does not report that it is lost")
	}
	x.end() // success
	e.free(name)
}
