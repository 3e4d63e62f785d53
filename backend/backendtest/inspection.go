package backendtest

import (
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

func inspectionCases() []Case {
	const told = "Inspect, List and HeldError tell who holds a lock and who waits, in order"
	return []Case{
		{ID: "C1", Name: "holders-are-told", Rule: told, run: holdersTold},
		{ID: "C1", Name: "shared-holders-are-told", Rule: told, Needs: needsPermits, run: sharedHoldersTold},
		{ID: "C3", Name: "the-queue-is-told", Rule: told, Needs: needsFIFO, run: queueTold},
		{ID: "C1", Name: "a-refusal-tells-who-holds", Rule: told, run: refusalTells},
		{ID: "C1", Name: "a-refusal-by-many-is-small", Rule: "A HeldError names at most MaxHeldHolders of those who hold the lock, and counts all", Needs: needsShared, run: refusalByMany},
		{ID: "C1", Name: "a-refusal-by-all-permits-is-small", Rule: "A HeldError names at most MaxHeldHolders of those who hold the lock, and counts all", Needs: needsPermits, run: refusalByPermits},
		{ID: "C1", Name: "list-is-sorted-and-paged", Rule: "List reports the locks that are held or waited for, in order of their names, page by page", run: listPaged},
		{ID: "C1", Name: "a-prefix-is-taken-as-it-is", Rule: "List reports the locks whose names start with the prefix, byte by byte", run: prefixAsIs},
	}
}

// clockApart is how far the wall clock of a backend may be from ours: it is for people.
const clockApart = time.Hour

func holdersTold(e *env) {
	a := e.client()
	name := e.name()
	if info := e.inspect(name); info.Name != name || info.Limit != 0 || len(info.Holders)+len(info.Waiters) > 0 {
		e.Fatalf("the lock was never held; Inspect returned %+v", info)
	}
	l := a.take(a.ask(name, owner(`w 7 "ü" 日' É`), note(`why: {"a": 'b'} \ 100%? e´; -- 日'🔒`)))
	e.checkHolder(name, l)
	a.give(l)
	l = a.take(a.ask(name, owner("w8"), e.timed(e.long())))
	e.checkHolder(name, l)
	left := func() time.Duration {
		holders := e.inspect(name).Holders
		if len(holders) != 1 {
			e.Fatalf("a held lock has the holders %+v", holders)
		}
		return holders[0].Left
	}
	before := left()
	if e.caps.Doubles && before == 0 { // the backend does not know it
		return
	}
	if !e.poll(e.soon(), func() bool { return left() < before }) {
		e.Errorf("Holder.Left stays %s", before)
	}
}

// checkHolder checks the lock of one exclusive holder.
func (e *env) checkHolder(name string, l lease) {
	info := e.inspect(name)
	if info.Name != name || info.Limit != 1 || len(info.Holders) != 1 || info.Token != 0 && info.Token != l.Token {
		e.Fatalf("one exclusive lease is held, with token %d; Inspect returned %+v", l.Token, info)
	}
	h := info.Holders[0]
	session, ttl := l.Session, e.long()
	if l.Timed {
		session = ""
	}
	want := backend.Holder{
		Lease: l.Lease, Session: session, Owner: l.Owner, Note: l.Note, Mode: l.Mode, Permits: 1,
		Token: l.Token, Since: h.Since, Left: h.Left,
	}
	if h != want {
		e.Errorf("Inspect reports the holder %+v; it is %+v", h, want)
	}
	if !e.leftTold(h.Left) || h.Left > ttl {
		e.Errorf("Holder.Left is %s; the TTL is %s", h.Left, ttl)
	}
	if apart := time.Since(h.Since).Abs(); apart > clockApart {
		e.Errorf("Holder.Since is %s, %s from now", h.Since, apart)
	}
	if !l.Since.IsZero() && l.Since.Sub(h.Since).Abs() > e.soon() {
		e.Errorf("Grant.Since is %s and Holder.Since is %s", l.Since, h.Since)
	}
}

func sharedHoldersTold(e *env) {
	const limit = 5
	a, b := e.client(), e.client()
	name := e.name()
	one, two := a.take(a.ask(name, permits(limit, 2), owner("one"))), b.take(b.ask(name, permits(limit, 3), owner("two")))
	e.holds(name, one, two)
	info := e.inspect(name)
	if info.Limit != limit || info.Token != 0 && info.Token != two.Token {
		e.Errorf("the limit is %d and the newest token %d; Inspect reports %+v", limit, two.Token, info)
	}
	for i, l := range []lease{one, two} {
		if h := info.Holders[i]; h.Mode != backend.Shared || h.Permits != l.Permits || h.Owner != l.Owner || h.Session != "" && h.Session != l.Session {
			e.Errorf("Inspect reports the holder %+v; it is %+v", h, l.AcquireRequest)
		}
	}
}

func queueTold(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name))
	var queue []*waiter
	opts := [][]option{{owner("one"), note("n1")}, {owner("two"), e.timed(e.long())}}
	if e.caps.Shared {
		opts = append(opts, []option{owner("three"), shared})
	}
	for _, o := range opts {
		queue = append(queue, b.join(b.ask(name, o...)))
	}
	info := e.inspect(name)
	if len(info.Waiters) != len(queue) {
		e.Fatalf("%d wait in the queue; Inspect reports %+v", len(queue), info.Waiters)
	}
	for i, w := range queue {
		x := info.Waiters[i]
		want := backend.Waiter{
			Lease: w.req.Lease, Session: b.sess, Owner: w.req.Owner, Note: w.req.Note, Mode: w.req.Mode, Permits: 1, Since: x.Since,
		}
		if x != want {
			e.Errorf("Inspect reports the waiter %+v; it is %+v", x, want)
		}
		if apart := time.Since(x.Since).Abs(); apart > clockApart {
			e.Errorf("Waiter.Since is %s, %s from now", x.Since, apart)
		}
	}
	e.holds(name, l)
}

// leftTold reports whether Holder.Left has an allowed value.
func (e *env) leftTold(left time.Duration) bool { return left > 0 || e.caps.Doubles && left == 0 }

func refusalTells(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	l := a.take(a.ask(name, owner("the owner"), note("why")))
	held := b.refusal(b.ask(name))
	if held.Name != name || held.Ahead != 0 || len(held.Holders) != 1 {
		e.Fatalf("%q has one holder and no waiter; HeldError is %+v", name, held)
	}
	if h := held.Holders[0]; h.Owner != "the owner" || h.Token != l.Token || !e.leftTold(h.Left) || h.Mode != backend.Exclusive || h.Since.IsZero() {
		e.Errorf("HeldError reports the holder %+v; it has token %d, and an owner, a remaining time and the time of its grant", h, l.Token)
	}
	if !e.caps.FIFO {
		return
	}
	b.join(b.ask(name))
	b.join(b.ask(name))
	if held = b.refusal(b.ask(name)); held.Ahead != 2 {
		e.Errorf("two wait in the queue; HeldError.Ahead is %d", held.Ahead)
	}
}

// aCrowd is more leases than any backend reads of a lock in one piece.
const aCrowd = 40

// refusalByMany has a lock with more holders than a refusal names. A request that is decided by
// reading only a part of them must be refused for the same reasons as by all.
func refusalByMany(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	out := e.fill(a, name, shared)
	e.checkMany(e.complete(b, b.ask(name), len(out)), out, 0)
	l := b.take(b.ask(name, shared))
	b.give(l)
	if !e.caps.FIFO {
		return
	}
	writer := b.join(b.ask(name))
	e.checkMany(b.refusal(b.ask(name, shared)), out, 1)
	e.checkMany(b.refusal(b.ask(name)), out, 1)
	writer.waits()
	e.times(len(out), func(i int) { a.give(out[i]) })
	e.holds(name, writer.granted())
}

func refusalByPermits(e *env) {
	a, b := e.client(), e.client()
	name := e.name()
	out := e.fill(a, name, permits(aCrowd, 1))
	e.checkMany(e.complete(b, b.ask(name, permits(aCrowd, 1)), len(out)), out, 0)
	e.checkMany(b.refusal(b.ask(name)), out, 0)
	a.give(out[0])
	l := b.take(b.ask(name, permits(aCrowd, 1)))
	e.checkMany(e.complete(b, b.ask(name, permits(aCrowd, 1)), len(out)), append(out[1:], l), 0)
}

// fill takes a lock for aCrowd leases, one after the other: concurrent acquisitions that do not
// wait block each other where a store decides by comparing.
func (*env) fill(c *client, name string, o option) []lease {
	out := make([]lease, aCrowd)
	for i := range out {
		out[i] = c.take(c.ask(name, o))
	}
	return out
}

// complete returns a refusal. Where a lease is held as soon as a majority of nodes knows of it,
// each node that is asked may not know of another one yet; it counts all of them soon.
func (e *env) complete(c *client, r backend.AcquireRequest, out int) *backend.HeldError {
	held := c.refusal(r)
	if e.caps.TokenKind == "votes" {
		e.poll(e.soon(), func() bool { held = c.refusal(r); return held.Count == out })
	}
	return held
}

// checkMany checks a refusal by the leases that are held, with that many waiters before it.
func (e *env) checkMany(held *backend.HeldError, out []lease, ahead int) {
	if n := len(held.Holders); n == 0 || n > backend.MaxHeldHolders {
		e.Errorf("%d leases are held; HeldError names %d, not 1 to %d", len(out), n, backend.MaxHeldHolders)
	}
	if held.Count != len(out) || held.Ahead != ahead {
		e.Errorf("%d leases are held and %d wait in the queue; HeldError counts %d and %d", len(out), ahead, held.Count, held.Ahead)
	}
	for _, h := range held.Holders {
		if !slices.ContainsFunc(out, func(l lease) bool { return l.Lease == h.Lease && l.Token == h.Token }) {
			e.Errorf("HeldError names the holder %+v, which does not hold the lock", h)
		}
	}
}

func listPaged(e *env) {
	a := e.client()
	prefix := e.name() + "/"
	names := []string{"B", "a", "a ", "a b", "_", "é", "e\u0301", "E", "É", "日'", "Z", "z", "~", "b/c", "b", "日本", "0", "10", "9"}
	for i, n := range names {
		names[i] = prefix + n
		a.take(a.ask(names[i]))
	}
	slices.Sort(names)
	for _, limit := range []int{0, 1, 3, len(names), len(names) + 1, backend.MaxListLimit} {
		var got []string
		after := ""
		for pages := 0; ; pages++ {
			page := e.list(backend.ListRequest{Prefix: prefix, After: after, Limit: limit})
			if pages > len(names) || limit > 0 && len(page.Locks) > limit {
				e.Fatalf("page %d with limit %d after %q has %d locks", pages, limit, after, len(page.Locks))
			}
			for _, l := range page.Locks {
				got = append(got, l.Name)
				if len(l.Holders) != 1 || l.Holders[0].Token == 0 || l.Limit != 1 {
					e.Errorf("List returned %+v; one exclusive lease is held", l)
				}
			}
			if after = page.Next; after == "" {
				break
			}
		}
		if !slices.Equal(got, names) {
			e.Fatalf("List with limit %d reports %q; it has to report %q", limit, got, names)
		}
	}
	rest := e.list(backend.ListRequest{Prefix: prefix, After: prefix + "aa"}) // not the name of any
	i, _ := slices.BinarySearch(names, prefix+"aa")
	if len(rest.Locks) != len(names)-i || rest.Locks[0].Name != names[i] {
		e.Fatalf("List after %q reports %d locks; %d follow", prefix+"aa", len(rest.Locks), len(names)-i)
	}
}

func prefixAsIs(e *env) {
	a := e.client()
	base := e.name()
	suffixes := []string{"a_b", "aXb", "a%b", "a*b", "a?b", "a[b]", "a\\b", "A_b", "a{b}", "ab", "a/b", "a.b", "\u00e1b", "a\u0301b", "A\u0301b", "\uff41b", "日'b", "日\"b", "a;--b", "aß", "ass"}
	for _, s := range suffixes {
		a.take(a.ask(base + s))
		a.take(a.ask("within/" + base + s))
	}
	for _, p := range []string{"a_", "a%", "a*", "a?", "a[", "a\\", "A", "a{", "a", "a/", "a/b", "a.", "b", "%", "_", "\u00e1", "a\u0301", "日'", "aß", "as"} {
		var want, got []string
		for _, s := range suffixes {
			if len(s) >= len(p) && s[:len(p)] == p {
				want = append(want, base+s)
			}
		}
		slices.Sort(want)
		for _, l := range e.list(backend.ListRequest{Prefix: base + p}).Locks {
			got = append(got, l.Name)
		}
		if !slices.Equal(got, want) {
			e.Errorf("List with prefix %q reports %q; it has to report %q", base+p, got, want)
		}
	}
	if page := e.list(backend.ListRequest{Prefix: base + "nothing"}); len(page.Locks) > 0 || page.Next != "" {
		e.Errorf("List with a prefix that no lock has reports %+v", page)
	}
}
