package backendtest

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func inputCases() []Case {
	const c11 = "bad input is an *InvalidError that names the field, before anything is sent or changed"
	const limits = "a limit that is not the one in force is a *LimitError, and nothing is changed"
	return []Case{
		{ID: "C11", Name: "bad-acquire", Rule: c11, run: badAcquire},
		{ID: "C11", Name: "bad-other-requests", Rule: c11, run: badOthers},
		{ID: "C11", Name: "bounds-are-inclusive", Rule: "what is within the bounds is taken", run: boundsInclusive},
		{ID: "C11", Name: "another-limit", Rule: limits, Needs: needsPermits, run: anotherLimit},
		{ID: "C11", Name: "readers-and-permits-do-not-mix", Rule: limits, Needs: func(c caps) bool { return c.Permits && c.Shared }, run: readersAndPermits},
	}
}

// unchanged calls f and checks that it did not change the lock.
func (e *env) unchanged(name string, f func()) {
	still := func() backend.LockInfo {
		info := e.inspect(name)
		for i := range info.Holders {
			info.Holders[i].Left = 0
		}
		return info
	}
	before := still()
	f()
	if after := still(); !reflect.DeepEqual(before, after) {
		e.Errorf("Inspect reported %+v before and %+v after", before, after)
	}
}

// invalid checks that err names the field.
func (e *env) invalid(call, field string, err error) {
	var bad *backend.InvalidError
	if !errors.As(err, &bad) || !errors.Is(err, backend.ErrInvalid) || bad.Field != field {
		e.Errorf("%s: %v; it has to be an *InvalidError that names %q", call, err, field)
	}
}

// badText returns texts that no field accepts.
func badText(most int) map[string]string {
	return map[string]string{
		"too long":                         strings.Repeat("x", most+1),
		"too long, in bytes":               strings.Repeat("é", most/2+1),
		"not UTF-8":                        "a\xffb",
		"cut UTF-8":                        "a\xc3",
		"a zero byte":                      "a\x00b",
		"a line break":                     "a\nb",
		"a tab":                            "a\tb",
		"a delete":                         "a\x7fb",
		"a C1 control":                     "a\u0085b",
		"the encoding of half a surrogate": "a\xed\xa0\x80",
	}
}

func badNames() map[string]string {
	bad := badText(backend.MaxNameLen)
	maps.Copy(bad, map[string]string{
		"empty": "", "a slash": "/", "a leading slash": "/a", "a trailing slash": "a/", "an empty segment": "a//b",
		"a dot": ".", "two dots": "..", "a dot segment": "a/./b", "a dot-dot segment": "a/../b", "a last dot-dot": "a/..",
	})
	return bad
}

func badIDs() map[string]string {
	return map[string]string{
		"empty": "", "short": "0123456789abcde", "long": strings.Repeat("a", 65), "with a space": "0123456789 abcdef",
		"with a slash": "0123456789/abcdef", "with a colon": "0123456789:abcdef", "not ASCII": "0123456789abcdeé", "a star": "0123456789abcde*",
	}
}

func badAcquire(e *env) {
	a := e.client()
	name := e.name()
	a.take(a.ask(name))
	if e.caps.FIFO {
		a.join(a.ask(name))
	}
	e.unchanged(name, func() {
		for _, b := range badRequests(e) {
			for _, wait := range []bool{false, true} {
				for _, n := range []string{name, e.name()} { // held, and free
					r := a.ask(n)
					r.Wait = wait
					b.change(&r)
					_, err := a.acquire(r)
					e.invalid(fmt.Sprintf("Acquire with %s (wait %v)", b.what, wait), b.field, err)
				}
			}
		}
	})
}

type badRequest struct {
	field, what string
	change      func(*backend.AcquireRequest)
}

func badRequests(e *env) []badRequest {
	bad := []badRequest{
		{"mode", "mode 2", func(r *backend.AcquireRequest) { r.Mode = 2 }},
		{"limit", "a limit for an exclusive lease", func(r *backend.AcquireRequest) { r.Limit = 1 }},
		{"permits", "permits of an exclusive lease", func(r *backend.AcquireRequest) { r.Permits = 2 }},
		{"permits", "negative permits of an exclusive lease", func(r *backend.AcquireRequest) { r.Permits = -1 }},
		{"limit", "a negative limit", permits(-1, 1)},
		{"limit", "a limit above the bound", permits(backend.MaxLimit+1, 1)},
		{"permits", "more permits than the limit", permits(2, 3)},
		{"permits", "negative permits", permits(2, -1)},
		{"permits", "two permits without a limit", permits(0, 2)},
	}
	if e.caps.Timed {
		bad = append(bad,
			badRequest{"ttl", "no TTL", timed(0)},
			badRequest{"ttl", "a negative TTL", timed(-time.Second)},
			badRequest{"ttl", "a TTL below the bound", timed(e.caps.MinTTL - 1)},
			badRequest{"ttl", "a TTL above the bound", timed(e.caps.MaxTTL + 1)})
	}
	if e.caps.Sessions {
		for what, s := range badIDs() {
			bad = append(bad, badRequest{"session", "a session ID: " + what, func(r *backend.AcquireRequest) { r.Session = backend.SessionID(s) }})
		}
	}
	for what, s := range badNames() {
		bad = append(bad, badRequest{"name", "a name: " + what, func(r *backend.AcquireRequest) { r.Name = s }})
	}
	for what, s := range badIDs() {
		bad = append(bad, badRequest{"lease", "a lease ID: " + what, func(r *backend.AcquireRequest) { r.Lease = backend.LeaseID(s) }})
	}
	for what, s := range badText(backend.MaxOwnerLen) {
		bad = append(bad, badRequest{"owner", "an owner: " + what, func(r *backend.AcquireRequest) { r.Owner = s }})
	}
	for what, s := range badText(backend.MaxNoteLen) {
		bad = append(bad, badRequest{"note", "a note: " + what, func(r *backend.AcquireRequest) { r.Note = s }})
	}
	return bad
}

func badOthers(e *env) {
	a := e.client()
	name := e.name()
	l := a.take(a.ask(name, e.timed(e.long())))
	ctx, cancel := e.within(e.soon())
	defer cancel()
	e.unchanged(name, func() {
		good := backend.TimedRenewal{Name: name, Lease: l.Lease, TTL: e.ttl()}
		renew := func(what, field string, change func(*backend.TimedRenewal)) {
			if !e.caps.Timed {
				return
			}
			bad := good
			change(&bad)
			_, err := a.b.Renew(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{bad}})
			e.invalid("Renew of "+what, field, err)
		}
		for what, s := range badNames() {
			_, err := a.b.Inspect(ctx, s)
			e.invalid("Inspect of a name: "+what, "name", err)
			_, err = a.b.Break(ctx, backend.BreakRequest{Name: s})
			e.invalid("Break of a name: "+what, "name", err)
			err = a.b.Release(ctx, backend.ReleaseRequest{Name: s, Lease: l.Lease})
			e.invalid("Release of a name: "+what, "name", err)
			renew("a name: "+what, "name", func(r *backend.TimedRenewal) { r.Name = s })
		}
		for what, s := range badIDs() {
			for _, abandon := range []bool{false, true} {
				err := a.b.Release(ctx, backend.ReleaseRequest{Name: name, Lease: backend.LeaseID(s), Abandon: abandon})
				e.invalid("Release of a lease ID: "+what, "lease", err)
			}
			renew("a lease ID: "+what, "lease", func(r *backend.TimedRenewal) { r.Lease = backend.LeaseID(s) })
			if s == "" || !e.caps.Sessions {
				continue
			}
			_, err := a.b.Renew(ctx, backend.RenewRequest{Session: backend.SessionID(s)})
			e.invalid("Renew of a session ID: "+what, "session", err)
		}
		for _, ttl := range []time.Duration{0, -1, e.caps.MinTTL - 1, e.caps.MaxTTL + 1} {
			if ttl != 0 { // that is the lease's own
				renew("a TTL: "+ttl.String(), "ttl", func(r *backend.TimedRenewal) { r.TTL = ttl })
			}
			if e.caps.Sessions {
				err := a.b.OpenSession(ctx, backend.SessionRequest{ID: backend.NewSessionID(), TTL: ttl})
				e.invalid("OpenSession with a TTL: "+ttl.String(), "ttl", err)
			}
		}
		if e.caps.Sessions {
			for what, s := range badIDs() {
				err := a.b.OpenSession(ctx, backend.SessionRequest{ID: backend.SessionID(s), TTL: e.long()})
				e.invalid("OpenSession of an ID: "+what, "session", err)
			}
		}
		if n := e.caps.MaxRenew; n > 0 {
			var req backend.RenewRequest
			for range n + 1 {
				req.Leases = append(req.Leases, good)
			}
			_, err := a.b.Renew(ctx, req)
			e.invalid("Renew of more leases than MaxRenew", "leases", err)
		}
		for what, s := range badText(backend.MaxNoteLen) {
			_, err := a.b.Break(ctx, backend.BreakRequest{Name: name, Reason: s})
			e.invalid("Break with a reason: "+what, "reason", err)
		}
		for what, s := range badText(backend.MaxOwnerLen) {
			_, err := a.b.Break(ctx, backend.BreakRequest{Name: name, Actor: s})
			e.invalid("Break with an actor: "+what, "actor", err)
		}
		for what, s := range badText(backend.MaxNameLen) {
			_, err := a.b.List(ctx, backend.ListRequest{Prefix: s})
			e.invalid("List with a prefix: "+what, "prefix", err)
			_, err = a.b.List(ctx, backend.ListRequest{After: s})
			e.invalid("List with an after: "+what, "after", err)
			if e.caps.Watch {
				err = a.b.Watch(ctx, backend.WatchRequest{Prefix: s}, func(backend.Event) {})
				e.invalid("Watch with a prefix: "+what, "prefix", err)
			}
		}
		for _, n := range []int{-1, backend.MaxListLimit + 1} {
			_, err := a.b.List(ctx, backend.ListRequest{Limit: n})
			e.invalid(fmt.Sprintf("List with limit %d", n), "limit", err)
		}
	})
	e.holds(name, l)
}

func boundsInclusive(e *env) {
	a := e.client()
	name := e.name()
	name += strings.Repeat("é", (backend.MaxNameLen-len(name))/2)
	name += strings.Repeat("x", backend.MaxNameLen-len(name))
	r := a.ask(name, e.timed(e.caps.MaxTTL), owner(strings.Repeat("o", backend.MaxOwnerLen)), note(strings.Repeat("ü", backend.MaxNoteLen/2)))
	r.Lease = backend.LeaseID(strings.Repeat("Zz9_-Aa0", 8)[:64-26] + string(backend.NewLeaseID())[:26])
	r.Permits = 1
	l := a.take(r)
	if e.caps.Timed {
		if x := a.renewLease(r, e.caps.MaxTTL); x.Err != nil {
			e.Errorf("Renew for the greatest TTL: %v", x.Err)
		}
	}
	e.holds(name, l)
	if h := e.inspect(name).Holders[0]; h.Owner != r.Owner || h.Note != r.Note {
		e.Errorf("Inspect reports owner %q and note %q", h.Owner, h.Note)
	}
	a.give(l)
	if e.caps.Timed {
		r = a.ask(e.name(), timed(e.caps.MinTTL))
		if g, err := a.acquire(r); err != nil && !errors.Is(err, backend.ErrLost) {
			e.Errorf("Acquire with the shortest TTL: %v", err)
		} else if err == nil && (g.Left <= 0 || g.Left > e.caps.MinTTL) {
			e.Errorf("Grant.Left is %s for the shortest TTL, %s", g.Left, e.caps.MinTTL)
		}
	}
	if e.caps.Permits {
		r = a.ask(e.name(), permits(backend.MaxLimit, backend.MaxLimit))
		a.give(a.take(r))
	}
	res := e.breakLock(name, strings.Repeat("r", backend.MaxNoteLen))
	if len(res.Broken) > 0 {
		e.Errorf("Break of a free lock reports %+v", res)
	}
}

// otherLimit checks that a request is refused because of its limit.
func (c *client) otherLimit(r backend.AcquireRequest, inForce int) {
	e := c.e
	e.unchanged(r.Name, func() {
		for _, wait := range []bool{false, true} {
			r.Wait = wait
			g, err := c.acquire(r)
			var bad *backend.LimitError
			if !errors.As(err, &bad) || !errors.Is(err, backend.ErrLimit) || !errors.Is(err, backend.ErrInvalid) {
				e.Fatalf("Acquire of %s where limit %d is in force returned (%+v, %v); it has to be a *LimitError", describe(r), inForce, g, err)
			}
			if bad.Name != r.Name || bad.Asked != r.Limit || bad.InForce != inForce {
				e.Errorf("the error reports %+v; the request had %d, and %d is in force", bad, r.Limit, inForce)
			}
		}
	})
}

func anotherLimit(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name, permits(3, 1)))
	b.otherLimit(b.ask(name, permits(2, 1)), 3)
	b.otherLimit(b.ask(name, permits(4, 1)), 3)
	k := b.take(b.ask(name, permits(3, 1)))
	if e.caps.FIFO {
		w := b.join(b.ask(name)) // an exclusive lease names no limit
		b.abandon(w.req)
	}
	a.give(l)
	b.otherLimit(b.ask(name, permits(2, 1)), 3)
	b.give(k)
	l = a.take(a.ask(name, permits(2, 1)))
	b.otherLimit(b.ask(name, permits(3, 1)), 2)
	a.give(l)
	if !e.caps.FIFO {
		return
	}
	// The limit of a waiter is in force, too.
	x := a.take(a.ask(name))
	w := b.join(b.ask(name, permits(5, 1)))
	a.otherLimit(a.ask(name, permits(2, 1)), 5)
	b.abandon(w.req)
	w.returns(e.soon())
	next := a.join(a.ask(name, permits(2, 1)))
	a.give(x)
	next.granted()
}

func readersAndPermits(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name, shared))
	b.otherLimit(b.ask(name, permits(2, 1)), 0)
	a.give(l)
	l = a.take(a.ask(name, permits(2, 1)))
	b.otherLimit(b.ask(name, shared), 2)
	a.give(l)
}
