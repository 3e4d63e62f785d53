package backendtest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func restartCases() []Case {
	durable := func(c caps) bool { return c.Durable }
	const survives = "leases survive a restart of the store"
	return []Case{
		{ID: "C2", Name: "tokens-rise-after-a-restart", Rule: "the tokens of one lock strictly increase, also across restarts", Restarts: true, run: tokensAfterRestart},
		{ID: "C1", Name: "leases-survive-a-restart", Rule: survives, Restarts: true, Needs: durable, run: leasesSurvive},
		{ID: "C4", Name: "leases-run-out-after-a-restart", Rule: "a restart never shortens a lease, nor makes it last for ever", Restarts: true, Needs: durable, run: expiryAfterRestart},
		{ID: "C5", Name: "the-dead-stay-dead-after-a-restart", Rule: "a session never revives, and an abandoned lease is never granted", Restarts: true, Needs: durable, run: deadAfterRestart},
		{ID: "C8", Name: "waiters-get-over-a-restart", Rule: "a waiter that asks again after a restart has the lock in the end", Restarts: true, run: waitersOverRestart},
	}
}

// restart restarts the store and waits until every backend value has an answer from it again.
func (e *env) restart() {
	e.h.Restart(e)
	name := e.name()
	e.mu.Lock()
	values := slices.Clone(e.values)
	e.mu.Unlock()
	for _, b := range values {
		var last error
		if !e.poll(e.afterRestart(), func() bool {
			ctx, cancel := e.within(e.soon())
			defer cancel()
			_, last = b.Inspect(ctx, name)
			return last == nil || errors.Is(last, backend.ErrClosed)
		}) {
			e.Fatalf("the store does not answer %s after its restart: %v", e.afterRestart(), last)
		}
	}
}

// forgetful returns a client whose session lives for as long as the quarantine of a store may
// last: one that is not durable may refuse everything for that time.
func (e *env) forgetful() *client {
	if e.caps.Durable {
		return e.client()
	}
	return e.mortal()
}

// afterRestart bounds what has to happen after a restart. A store in quarantine for leases that
// it forgot grants nothing for as long as they could last.
func (e *env) afterRestart() time.Duration {
	return time.Minute + 2*e.ttl() + e.caps.ExpiryLag + e.h.Slack
}

// insist retries until there is an answer, as a client does while a backend is unavailable.
func (c *client) insist(r backend.AcquireRequest) (backend.Grant, error) {
	var g backend.Grant
	var err error
	c.tidy(r)
	c.e.poll(c.e.afterRestart(), func() bool {
		ctx, cancel := c.e.within(c.e.afterRestart())
		defer cancel()
		g, err = c.b.Acquire(ctx, r)
		return !errors.Is(err, backend.ErrUnavailable)
	})
	return g, err
}

// get is insist for a lock that has to be granted in the end.
func (c *client) get(r backend.AcquireRequest) lease {
	from := time.Now()
	g, err := c.insist(r)
	if err != nil {
		c.e.Fatalf("Acquire of %s after a restart: %v; it has to be granted", describe(r), err)
	}
	return lease{r, g, span{from, time.Now()}}
}

// tokensAfterRestart needs no leases to survive: what was held before is released, or
// forgotten.
func tokensAfterRestart(e *env) {
	const rounds = 3
	name := e.name()
	tokens := rising{e: e}
	for i := range rounds {
		if i > 0 {
			e.restart()
		}
		ctx, cancel := e.within(e.afterRestart())
		defer cancel()
		c := e.forgetful()
		l := c.persist(ctx, name, e.timed(e.ttl()))
		if l.Token == 0 {
			e.Fatalf("the lock was not granted within %s of the restart", e.afterRestart())
		}
		tokens.next("the grant", l.Token)
		if err := c.release(l.AcquireRequest); err != nil && !errors.Is(err, backend.ErrLost) {
			e.Fatalf("Release: %v", err)
		}
	}
}

func leasesSurvive(e *env) {
	a, b := e.client(), e.client()
	name, timedName, free := e.name(), e.name(), e.name()
	l, k := a.take(a.ask(name, owner("w7"), note("why"))), a.take(a.ask(timedName, e.timed(e.long())))
	gone := a.take(a.ask(free))
	a.give(gone)
	var reader, writer lease
	sharedName := e.name()
	if e.caps.Shared {
		reader, writer = a.take(a.ask(sharedName, shared)), b.take(b.ask(sharedName, shared))
	}
	e.restart()
	e.holds(name, l)
	e.holds(timedName, k)
	if e.caps.Shared {
		e.holds(sharedName, reader, writer)
	}
	if h := e.inspect(name).Holders[0]; h.Owner != "w7" || h.Note != "why" {
		e.Errorf("Inspect reports the holder %+v after a restart", h)
	}
	if g, err := b.insist(b.ask(name)); !errors.Is(err, backend.ErrHeld) {
		e.Fatalf("Acquire of a lock that was held before the restart returned (%+v, %v)", g, err)
	}
	if again := a.get(l.AcquireRequest); again.Token != l.Token {
		e.Fatalf("the same Acquire has token %d after a restart; it had %d", again.Token, l.Token)
	}
	if e.caps.Sessions {
		a.keep()
	}
	if e.caps.Timed {
		if r := a.renewLease(k.AcquireRequest, e.long()); r.Err != nil || r.Token != k.Token {
			e.Fatalf("Renew of a timed lease after a restart returned %+v", r)
		}
	}
	a.give(l)
	a.give(k)
	if next := b.get(b.ask(name)); next.Token <= l.Token {
		e.Fatalf("token %d after token %d", next.Token, l.Token)
	}
	if next := b.get(b.ask(free)); next.Token <= gone.Token {
		e.Fatalf("token %d after token %d", next.Token, gone.Token)
	}
}

func expiryAfterRestart(e *env) {
	a := e.client()
	d := e.client()
	if e.caps.Sessions {
		d = e.mortal()
	}
	name, other := e.name(), e.name()
	sets := map[string]span{other: d.opened}
	if e.caps.Timed {
		sets[name] = a.take(a.ask(name, timed(e.ttl()))).asked
	}
	d.take(d.ask(other, timedUnlessSession(e)...))
	e.restart()
	restarted := time.Now()
	for n, set := range sets {
		r := a.ask(n)
		r.Wait = true
		next := a.get(r)
		if n == other && !e.caps.Sessions {
			continue
		}
		if early := set.from.Add(e.ttl()).Sub(next.asked.to); early > 0 {
			e.Errorf("after a restart the lock was free %s before its lease's TTL of %s had elapsed", early, e.ttl())
		}
		if took := next.asked.to.Sub(restarted); took > e.afterRestart() {
			e.Errorf("the lock was free %s after the restart; the TTL of its lease was %s", took, e.ttl())
		}
	}
}

func timedUnlessSession(e *env) []option {
	if e.caps.Sessions {
		return nil
	}
	return []option{e.timed(e.ttl())}
}

func deadAfterRestart(e *env) {
	a := e.client()
	name := e.name()
	held := a.take(a.ask(name))
	r := a.ask(name)
	a.abandon(r)
	released := a.take(a.ask(e.name(), e.timed(e.long())))
	a.give(released)
	b := e.client()
	if e.caps.Sessions {
		b.end()
	}
	e.restart()
	e.holds(name, held)
	a.give(held)
	a.neverGranted(r)
	e.free(name)
	if e.caps.Timed {
		if x := a.renewLease(released.AcquireRequest, e.long()); !errors.Is(x.Err, backend.ErrLost) {
			e.Errorf("Renew of a lease that was released before the restart returned %+v", x)
		}
	}
	if e.caps.Sessions {
		b.dead(e.name())
	}
}

// waitersOverRestart has waiters retry under the same lease ID while the store goes down and
// comes back.
func waitersOverRestart(e *env) {
	const n = 3
	a := e.client()
	name := e.name()
	holder := a
	if !e.caps.Timed {
		holder = e.on(e.open(), 2*e.ttl())
	}
	l := holder.take(holder.ask(name, e.timed(2*e.ttl())))
	type grant struct {
		lease
		to *client
	}
	granted := make(chan grant, n)
	stop, cancel := context.WithTimeout(e.ctx, e.afterRestart())
	defer cancel()
	wait := func(c *client) { granted <- grant{c.persist(stop, name), c} }
	for range n {
		go wait(e.forgetful())
	}
	queued := func() bool { // on a busy machine the lease may end before all of them wait
		info := e.inspect(name)
		return len(info.Waiters) == n || !slices.ContainsFunc(info.Holders, func(h backend.Holder) bool { return h.Lease == l.Lease })
	}
	if e.caps.FIFO && !e.poll(e.soon(), queued) {
		e.Fatalf("%d wait; Inspect reports %+v", n, e.inspect(name).Waiters)
	}
	e.restart()
	tokens := rising{e: e}
	if e.caps.Durable {
		tokens.last = l.Token
	}
	for i := 0; i < n; {
		select {
		case x := <-granted:
			if x.Token == 0 {
				e.Fatalf("waiter %d was not granted the lock within %s of the restart", i, e.afterRestart())
			}
			tokens.next("the grant", x.Token)
			err := e.other(x.to, a).releaseHeld(x.AcquireRequest)
			switch {
			case err == nil:
				i++
			case errors.Is(err, backend.ErrLost) && !e.caps.Durable:
				go wait(x.to) // the store dropped the holder before it dropped this client, and then went down
			default:
				e.Fatalf("Release of %s: %v; it was held", describe(x.AcquireRequest), err)
			}
		case <-stop.Done():
			e.Fatalf("waiter %d was not granted the lock within %s of the restart", i, e.afterRestart())
		}
	}
}

// persist retries until the lock is granted, as a client does: with a new session when the old
// one is lost, and then with a new lease ID.
func (c *client) persist(ctx context.Context, name string, opts ...option) lease {
	var r backend.AcquireRequest
	var from time.Time
	anew := func() {
		r, from = c.ask(name, opts...), time.Now()
		r.Wait = true
	}
	anew()
	for ctx.Err() == nil {
		c.tidy(r)
		g, err := c.b.Acquire(ctx, r)
		switch {
		case err == nil:
			return lease{AcquireRequest: r, Grant: g}
		case errors.Is(err, backend.ErrSessionLost):
			c.sess = backend.NewSessionID()
			if err = c.open(); err != nil {
				c.e.Logf("OpenSession after a restart: %v", err)
			}
			anew()
		case errors.Is(err, backend.ErrLost) && r.Timed && time.Since(from) >= r.TTL: // it ended on the way
			anew()
		case !errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded):
			c.e.Errorf("Acquire of %s while the store restarts: %v", describe(r), err)
			return lease{}
		}
		t := time.NewTimer(10 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
	return lease{}
}
