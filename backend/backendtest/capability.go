package backendtest

import (
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func capabilityCases() []Case {
	const rule = "what a backend does not claim it refuses with ErrUnsupported, and does not pretend"
	return []Case{
		{ID: "C11", Name: "capabilities-make-sense", Rule: "the capabilities are complete, agree with each other and never change", run: capabilitiesMakeSense},
		{ID: "C11", Name: "no-sessions", Rule: rule, Needs: func(c caps) bool { return !c.Sessions }, run: noSessions},
		{ID: "C11", Name: "no-timed-leases", Rule: rule, Needs: func(c caps) bool { return !c.Timed }, run: refuses(timed(time.Minute))},
		{ID: "C11", Name: "no-shared-leases", Rule: rule, Needs: func(c caps) bool { return !c.Shared }, run: refuses(shared)},
		{ID: "C11", Name: "no-permits", Rule: rule, Needs: func(c caps) bool { return !c.Permits }, run: refuses(permits(2, 1))},
		{ID: "C11", Name: "no-watch", Rule: rule, Needs: func(c caps) bool { return !c.Watch }, run: noWatch},
	}
}

func capabilitiesMakeSense(e *env) {
	c := e.caps
	if again := e.open().Capabilities(); again != c {
		e.Errorf("another value has the capabilities %+v; the first had %+v", again, c)
	}
	if c.Name == "" {
		e.Errorf("the backend has no name")
	}
	switch c.TokenKind {
	case "revision", "counter", "clock", "votes":
	default:
		e.Errorf("TokenKind is %q", c.TokenKind)
	}
	if c.MinTTL <= 0 || c.MaxTTL < c.MinTTL || c.MaxTTL < 10*time.Second {
		e.Errorf("a TTL is %s to %s", c.MinTTL, c.MaxTTL)
	}
	if c.ExpiryLag <= 0 {
		e.Errorf("ExpiryLag is %s: no store is that exact", c.ExpiryLag)
	}
	if c.MaxRenew < 0 {
		e.Errorf("MaxRenew is %d", c.MaxRenew)
	}
	if !c.Sessions && !c.Timed {
		e.Errorf("there are neither sessions nor timed leases: no lease is possible")
	}
	if c.Tied && !c.Bound {
		e.Errorf("leases end with the connection, and sessions are not bound to any")
	}
	if c.LossPush && !c.Sessions {
		e.Errorf("LossPush is claimed, but there is no session that a loss could be pushed to")
	}
}

// unsupported checks that err is backend.ErrUnsupported.
func (e *env) unsupported(call string, err error) {
	if !errors.Is(err, backend.ErrUnsupported) {
		e.Errorf("%s: %v; it has to be ErrUnsupported", call, err)
	}
}

func noSessions(e *env) {
	a := e.client()
	id := backend.NewSessionID()
	ctx, cancel := e.within(e.soon())
	defer cancel()
	e.unsupported("OpenSession", a.b.OpenSession(ctx, backend.SessionRequest{ID: id, TTL: e.long()}))
	e.unsupported("EndSession", a.b.EndSession(ctx, id))
	_, err := a.b.Renew(ctx, backend.RenewRequest{Session: id})
	e.unsupported("Renew of a session", err)
	name := e.name()
	for _, wait := range []bool{false, true} {
		r := a.ask(name)
		r.Wait, r.Session = wait, id
		_, err = a.acquire(r)
		e.unsupported("Acquire under a session", err)
		r = a.ask(name)
		r.Wait, r.Timed, r.TTL = wait, false, 0
		_, err = a.acquire(r)
		e.unsupported("Acquire of a lease that is not timed", err)
	}
	e.free(name)
}

// refuses checks that a lease with this option is not supported, whether or not the lock is
// held.
func refuses(o option) func(*env) {
	return func(e *env) {
		a := e.client()
		name := e.name()
		check := func() {
			for _, wait := range []bool{false, true} {
				r := a.ask(name, o)
				r.Wait = wait
				_, err := a.acquire(r)
				e.unsupported("Acquire of "+describe(r), err)
			}
		}
		check()
		e.free(name)
		l := a.take(a.ask(name))
		check()
		e.holds(name, l)
	}
}

func noWatch(e *env) {
	ctx, cancel := e.within(e.soon())
	defer cancel()
	err := e.anyBackend().Watch(ctx, backend.WatchRequest{}, func(x backend.Event) { e.Errorf("an event: %+v", x) })
	e.unsupported("Watch", err)
}
