package backendtest

import (
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func exclusionCases() []Case {
	const c1 = "what is out at any time is compatible: one exclusive lease, or shared leases within the limit"
	return []Case{
		{ID: "C1", Name: "exclusive-excludes", Rule: c1, run: exclusiveExcludes},
		{ID: "C1", Name: "one-session-excludes-itself", Rule: "two leases of one session exclude each other: only the lease ID counts", run: oneSession},
		{ID: "C1", Name: "owners-permit-nothing", Rule: "two leases of one owner exclude each other: an owner is a name for people", run: ownersPermitNothing},
		{ID: "C1", Name: "one-of-many-wins", Rule: c1, run: oneOfMany},
		{ID: "C1", Name: "refusals-name-somebody", Rule: "a lock without holders and waiters is never reported as held", run: refusalsName},
		{ID: "C1", Name: "shared-leases-share", Rule: c1, Needs: needsShared, run: sharedShares},
		{ID: "C1", Name: "permits-up-to-the-limit", Rule: c1, Needs: needsPermits, run: permitsUpToLimit},
		{ID: "C1", Name: "names-never-collide", Rule: "distinct names are distinct locks, and equal names one lock: nothing is folded, trimmed or cut", run: namesNeverCollide},
		{ID: "C1", Name: "random-walk", Rule: c1 + "; and tokens rise", run: func(e *env) { walk(e, exclusiveOnly) }},
		{ID: "C1", Name: "random-walk-shared", Rule: c1 + "; and tokens rise", Needs: needsShared, run: func(e *env) { walk(e, sharedToo) }},
		{ID: "C1", Name: "random-walk-permits", Rule: c1 + "; and tokens rise", Needs: needsPermits, run: func(e *env) { walk(e, permitsToo) }},
	}
}

func needsShared(c caps) bool   { return c.Shared }
func needsPermits(c caps) bool  { return c.Permits }
func needsSessions(c caps) bool { return c.Sessions }
func needsTimed(c caps) bool    { return c.Timed }
func needsFIFO(c caps) bool     { return c.FIFO }
func needsOrder(c caps) bool    { return c.FIFO && c.Shared }
func needsQueue(c caps) bool    { return c.FIFO && c.Permits }

func exclusiveExcludes(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	b.refused(b.ask(name))
	b.refused(b.ask(name, e.timed(e.long())))
	if e.caps.Shared {
		b.refused(b.ask(name, shared))
	}
	if e.caps.Permits {
		b.refused(b.ask(name, permits(3, 1)))
	}
	e.holds(name, l)
	a.give(l)
	e.free(name)
	l = b.take(b.ask(name, e.timed(e.long())))
	a.refused(a.ask(name))
	e.holds(name, l)
	b.give(l)
	e.free(name)
}

func oneSession(e *env) {
	a := e.client()
	name := e.name()
	l := a.take(a.ask(name))
	a.refused(a.ask(name))
	w := a.join(a.ask(name))
	w.waits()
	a.give(l)
	next := w.granted()
	e.holds(name, next)
	a.refused(a.ask(name))
}

// oneOfMany requests a lock concurrently from several sessions and several goroutines of each.
func oneOfMany(e *env) {
	const sessions, each, rounds, splits = 3, 4, 5, 10
	clients := make([]*client, sessions)
	e.times(sessions, func(i int) { clients[i] = e.client() })
	for won, split := 0, 0; won < rounds; {
		name := e.name()
		var winners atomic.Int32
		e.times(sessions*each, func(i int) {
			c := clients[i%sessions]
			r := c.ask(name)
			_, err := c.acquire(r)
			switch {
			case err == nil:
				winners.Add(1)
			case !errors.Is(err, backend.ErrHeld) && (e.caps.FIFO || !errors.Is(err, backend.ErrUnavailable)):
				e.Fatalf("Acquire of %s: %v", describe(r), err)
			}
		})
		switch n := winners.Load(); {
		case n == 1:
			won++
		case n == 0 && !e.caps.FIFO && split < splits: // where there are votes they may split
			split++
		default:
			e.Fatalf("%d of %d concurrent acquires were granted; want exactly one", n, sessions*each)
		}
	}
}

// refusalsName has several clients acquire and release a lock again and again. A holder that
// leaves between a refusal and the read of the holders is named all the same.
func refusalsName(e *env) {
	const clients, enough, rounds, atMost = 4, 2000, 20_000, time.Second
	name := e.name()
	all := make([]*client, clients)
	e.times(clients, func(i int) { all[i] = e.client() })
	ctx, cancel := e.within(e.soon())
	defer cancel()
	began := time.Now()
	var refusals atomic.Int64
	e.times(clients, func(i int) {
		for range rounds {
			if refusals.Load() >= enough || time.Since(began) > atMost {
				return
			}
			r := all[i].ask(name)
			_, err := all[i].b.Acquire(ctx, r)
			e.checkRefusal(r, err)
			switch {
			case err == nil:
				all[i].give(lease{AcquireRequest: r})
			case errors.Is(err, backend.ErrHeld):
				refusals.Add(1)
			case e.caps.FIFO || !errors.Is(err, backend.ErrUnavailable): // where there are votes they may split
				e.Fatalf("Acquire of %s: %v", describe(r), err)
			}
		}
	})
}

func sharedShares(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	first, second := a.take(a.ask(name, shared)), b.take(b.ask(name, shared))
	third := a.take(a.ask(name, shared, e.timed(e.long())))
	if first.Token >= second.Token || second.Token >= third.Token {
		e.Fatalf("tokens %d, %d, %d; they have to rise", first.Token, second.Token, third.Token)
	}
	e.holds(name, first, second, third)
	b.refused(b.ask(name))
	a.give(first)
	b.refused(b.ask(name))
	b.give(second)
	b.refused(b.ask(name))
	a.give(third)
	l := b.take(b.ask(name))
	a.refused(a.ask(name, shared))
	b.give(l)
	e.free(name)
}

func permitsUpToLimit(e *env) {
	const limit = 4
	a, b := e.client(), e.client()
	name := e.name()
	two, one := a.take(a.ask(name, permits(limit, 2))), b.take(b.ask(name, permits(limit, 1)))
	b.refused(b.ask(name, permits(limit, 2)))
	b.refused(b.ask(name))
	none := b.take(b.ask(name, permits(limit, 0))) // counts as one
	b.refused(b.ask(name, permits(limit, 1)))
	e.holds(name, two, one, none)
	a.give(two)
	b.refused(b.ask(name, permits(limit, 3)))
	again := a.take(a.ask(name, permits(limit, 2), e.timed(e.long())))
	b.refused(b.ask(name, permits(limit, 1)))
	for _, l := range []lease{one, none, again} {
		a.give(l)
	}
	all := a.take(a.ask(name, permits(limit, limit)))
	b.refused(b.ask(name, permits(limit, 1)))
	a.give(all)
	l := b.take(b.ask(name))
	a.refused(a.ask(name, permits(limit, 1)))
	b.give(l)
	e.free(name)
}

// namesNeverCollide holds locks, all at the same time, whose names some store could take for
// the same.
func namesNeverCollide(e *env) {
	a, other, b := e.client(), e.client(), e.client()
	held := make(map[string]lease)
	for _, n := range trickyNames(e.name()) {
		a, other = other, a // a store may grant one lock twice to one session
		g, err := a.acquire(a.ask(n))
		if err != nil {
			e.Fatalf("Acquire of %q: %v; it is a lock of its own", n, err)
		}
		held[n] = lease{Grant: g}
	}
	for n, l := range held {
		_, err := b.acquire(b.ask(n))
		var refused *backend.HeldError
		if !errors.As(err, &refused) {
			e.Fatalf("Acquire of %q again: %v; it is held", n, err)
		}
		if refused.Name != n {
			e.Errorf("HeldError names %q; the request named %q", refused.Name, n)
		}
		if info := e.inspect(n); info.Name != n || len(info.Holders) != 1 || info.Holders[0].Token != l.Token {
			e.Errorf("Inspect of %q reports %+v; it is held with token %d", n, info, l.Token)
		}
	}
}

func trickyNames(base string) []string {
	names := []string{base}
	for _, s := range []string{
		"a", "A", "a ", " a", "a  ", "ä", "a\u0308", "Ä", "ß", "ss", "ı", "i", "I", "İ", "a\u00a0", "a\u200b", "日本", "🔒",
		"/a", "/a/b", "/a%2Fb", "/a%2fb", "/a\\b", "/a:b", "/a b", "/a+b", "/a%20b", "/...", "/.a", "/a.", "/a..b",
		"{a}", "{a}b", "{", "}", "{}", "}{", "{{a}}", "%", "%%", "%s", "_", "*", "?", "[a]", "'", `"`, "`", ";", "--", "#", "$1", "@",
		":", "::", ":a", "=", "&", "|", "<", ">", "~", "^", ",", "(a)", "\\", "\\n", "/lock", "/queue", "/token", "-0000000001", "/0000000001", "/_c_",
	} {
		names = append(names, base+s)
	}
	pad := strings.Repeat("x", backend.MaxNameLen-len(base)-2)
	return append(names, base+pad, base+pad+"y", base+pad+"yz", base+pad+"yZ", base+pad+"é")
}

func ownersPermitNothing(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name, owner("one")))
	for _, c := range []*client{a, b} {
		c.refused(c.ask(name, owner("one")))
	}
	a.give(l)
	e.free(name)
}
