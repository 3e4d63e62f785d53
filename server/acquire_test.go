package server_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

func TestAcquireRenewRelease(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	before := time.Now()
	g := a.take("order:123", `{"ttl":"30s","owner":"w7","note":"n"}`)
	if g.Name != "order:123" || g.Owner != "w7" || g.TTL.String() != "30s" || !g.Token.Valid() || len(g.Lease) < 16 {
		t.Errorf("grant %+v", g)
	}
	if left := g.ExpiresAt.Sub(before); left < 29*time.Second || left > 30*time.Second+patience {
		t.Errorf("expires_at is %s after the request", left)
	}
	l := a.inspect("order:123")
	if len(l.Holders) != 1 || l.Holders[0].Lease != g.Lease || l.Holders[0].Owner != "w7" || l.Holders[0].Note != "n" ||
		l.Holders[0].Token != g.Token || l.Holders[0].Shared || l.Holders[0].Permits != 1 || l.Limit != 1 {
		t.Errorf("inspect %+v", l)
	}
	r := want[wire.RenewResult](a, 200, "PUT", lockPath("order:123")+"/leases/"+g.Lease, `{"ttl":"1m"}`)
	if r.TTL.String() != "1m0s" || r.Token != g.Token || r.Name != "order:123" || r.Lease != g.Lease {
		t.Errorf("renewal %+v", r)
	}
	a.release("order:123", g.Lease, 204)
	a.release("order:123", g.Lease, 410)
	p := want[wire.Problem](a, 410, "PUT", lockPath("order:123")+"/leases/"+g.Lease, `{"ttl":"1m"}`)
	if p.Type != wire.TypeLost {
		t.Errorf("problem %+v", p)
	}
	if l := a.inspect("order:123"); len(l.Holders)+len(l.Waiters) != 0 || l.Holders == nil || l.Waiters == nil {
		t.Errorf("a free lock has empty lists: %+v", l)
	}
	if again := a.take("order:123", ""); again.Token <= g.Token || again.TTL.String() != "30s" {
		t.Errorf("the next grant %+v, after token %d", again, g.Token)
	}
}

func TestHeld(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	g := a.take("x", `{"ttl":"5s","owner":"first"}`)
	got := a.call("POST", lockPath("x"), `{"owner":"second"}`)
	p := decode[wire.Problem](t, got)
	if got.status != 409 || p.Type != wire.TypeHeld || p.Position != 1 || len(p.Holders) != 1 || p.Holders[0].Owner != "first" || p.Holders[0].Token != g.Token {
		t.Errorf("status %d, problem %+v", got.status, p)
	}
	if ct := got.header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("Content-Type %q", ct)
	}
	if n, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || n < 1 || n > 5 {
		t.Errorf("Retry-After %q", got.header.Get("Retry-After"))
	}
	// Also after a wait, with the place that it kept.
	begun := time.Now()
	p = want[wire.Problem](a, 409, "POST", lockPath("x"), `{"wait":"300ms"}`)
	if took := time.Since(begun); took < 300*time.Millisecond {
		t.Errorf("answered after %s, wait was 300ms", took)
	}
	if p.Position != 1 || len(p.Holders) != 1 {
		t.Errorf("problem %+v", p)
	}
	a.waiters("x", 0)
}

// Waiters are served in order, by one push after the release.
func TestWaitInQueue(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	g := a.take("x", `{}`)
	var queue []*later
	for i := range 5 {
		queue = append(queue, a.send("POST", lockPath("x"), fmt.Sprintf(`{"wait":"60s","owner":"w%d"}`, i)))
		a.waiters("x", i+1)
	}
	for i, w := range a.inspect("x").Waiters {
		if w.Position != i+1 || w.Owner != fmt.Sprintf("w%d", i) {
			t.Errorf("waiter %d: %+v", i, w)
		}
	}
	last, token := g.Lease, g.Token
	for i, l := range queue {
		a.release("x", last, 204)
		got := l.get(t)
		if got.status != 200 {
			t.Fatalf("waiter %d: status %d: %s", i, got.status, got.body)
		}
		next := decode[wire.Grant](t, got)
		if next.Owner != fmt.Sprintf("w%d", i) || next.Token <= token || next.TTL.String() != "30s" {
			t.Errorf("grant %d: %+v after token %d", i, next, token)
		}
		if got.header.Get(wire.HeaderWaited) == "" {
			t.Errorf("grant %d: no %s", i, wire.HeaderWaited)
		}
		last, token = next.Lease, next.Token
	}
}

func TestHangUpLeavesTheQueue(t *testing.T) {
	t.Parallel()
	for _, lease := range []string{"", `,"lease":"0123456789abcdef"`} {
		a := start(t, server.Config{PlaceTTL: 10 * time.Minute})
		g := a.take("x", `{}`)
		first := a.send("POST", lockPath("x"), `{"wait":"60s","owner":"gone"`+lease+`}`)
		a.waiters("x", 1)
		second := a.send("POST", lockPath("x"), `{"wait":"60s","owner":"stays"}`)
		a.waiters("x", 2)
		first.cancel()
		a.waiters("x", 1)
		a.release("x", g.Lease, 204)
		if got := second.get(t); got.status != 200 {
			t.Errorf("lease %q: status %d: %s", lease, got.status, got.body)
		}
	}
}

// A free lock is acquired without a session, also by a request that would wait for it.
func TestFreeLockNeedsNoSession(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	body := func(n int) string { return fmt.Sprintf(`{"ttl":"30s","wait":"60s","lease":"my-own-lease-000%d"}`, n) }
	first := a.take("x", body(1))
	if n := a.b.opened.Load(); n != 0 {
		t.Errorf("%d sessions for a lock that was free", n)
	}
	waits := a.send("POST", lockPath("x"), body(2))
	a.waiters("x", 1)
	if n := a.b.opened.Load(); n != 1 {
		t.Errorf("%d sessions for one who waits", n)
	}
	a.release("x", first.Lease, 204)
	if got := waits.get(t); got.status != 200 {
		t.Errorf("status %d: %s", got.status, got.body)
	}
}

// C6: one lease ID is one grant, however often it is requested.
func TestSameLeaseAgain(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	const body = `{"ttl":"2m","wait":"%s","lease":"my-own-lease-0001"}`
	first := a.take("x", fmt.Sprintf(body, "0s"))
	for _, wait := range []string{"0s", "5s"} {
		again := a.take("x", fmt.Sprintf(body, wait))
		if again.Token != first.Token || again.Lease != first.Lease {
			t.Errorf("again %+v, first %+v", again, first)
		}
		if again.TTL > first.TTL || again.TTL < wire.Duration(2*time.Minute-patience) {
			t.Errorf("again with ttl %s: it tells what is left", again.TTL)
		}
	}
	if n := len(a.inspect("x").Holders); n != 1 {
		t.Errorf("%d holders", n)
	}
	a.release("x", first.Lease, 204)
	a.release("x", first.Lease, 410)
	// A lease that was released twice can never be granted again.
	if got := a.call("POST", lockPath("x"), fmt.Sprintf(body, "0s")); got.status != 410 {
		t.Errorf("status %d: %s", got.status, got.body)
	}
}

// A poll ends, and the next one uses the same lease: the place is kept if the request asked for
// that.
func TestKeepPlace(t *testing.T) {
	t.Parallel()
	virtual(t, inMemory, server.Config{}, func(t *testing.T, a *api) { //nolint:thelper // it is the test
		g := a.take("x", `{}`)
		poll := func(wait string) *later {
			return a.send("POST", lockPath("x"), `{"owner":"polls","lease":"my-own-lease-0001","wait":"`+wait+`"}`, wire.HeaderKeepPlace, "14s")
		}
		first := poll("5s")
		a.waiters("x", 1)
		other := a.send("POST", lockPath("x"), `{"owner":"other","wait":"60s"}`)
		a.waiters("x", 2)
		if got := first.get(t); got.status != 409 || decode[wire.Problem](t, got).Position != 1 {
			t.Fatalf("status %d: %s", got.status, got.body)
		}
		if w := a.inspect("x").Waiters; len(w) != 2 || w[0].Owner != "polls" {
			t.Fatalf("queue %+v", w)
		}
		second := poll("60s")
		a.release("x", g.Lease, 204)
		got := second.get(t)
		if got.status != 200 {
			t.Fatalf("status %d: %s", got.status, got.body)
		}
		a.release("x", decode[wire.Grant](t, got).Lease, 204)
		if got := other.get(t); got.status != 200 {
			t.Fatalf("status %d: %s", got.status, got.body)
		}
	})
}

// The server never releases a lease that its client named: it may be held through another
// server by now.
func TestFailOver(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore()
	one, two := startOn(t, store, server.Config{}), startOn(t, store, server.Config{})
	g := one.take("x", `{}`)
	const body = `{"owner":"moves","lease":"my-own-lease-0001","wait":"60s"}`
	first := one.send("POST", lockPath("x"), body)
	one.waiters("x", 1)
	session := func() backend.SessionID {
		info, err := two.b.Inspect(t.Context(), "x")
		if err != nil || len(info.Waiters) != 1 {
			t.Fatalf("inspect: %+v, %v", info, err)
		}
		return info.Waiters[0].Session
	}
	before := session()
	second := two.send("POST", lockPath("x"), body)
	leasetest.Eventually(t, "the second server has taken over the place", func() bool { return session() != before })
	first.cancel()
	<-first.done
	leasetest.Eventually(t, "the first server has let go", func() bool { return metric(one, "holdfast_sessions{backend=\"memory\"}") == 0 })
	one.release("x", g.Lease, 204)
	got := second.get(t)
	if got.status != 200 {
		t.Fatalf("status %d: %s", got.status, got.body)
	}
	if h := two.inspect("x").Holders; len(h) != 1 || h[0].Owner != "moves" {
		t.Errorf("holders %+v", h)
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	a.take("r", `{"shared":true}`)
	a.take("r", `{"shared":true,"limit":1}`)
	want[wire.Problem](a, 409, "POST", lockPath("r"), `{}`)
	if l := a.inspect("r"); l.Limit != 0 || len(l.Holders) != 2 || !l.Holders[0].Shared {
		t.Errorf("readers %+v", l)
	}
	a.take("s", `{"limit":3,"permits":2}`)
	a.take("s", `{"limit":3,"shared":true}`)
	want[wire.Problem](a, 409, "POST", lockPath("s"), `{"limit":3}`)
	if l := a.inspect("s"); l.Limit != 3 || len(l.Holders) != 2 || l.Holders[0].Permits != 2 {
		t.Errorf("semaphore %+v", l)
	}
	p := want[wire.Problem](a, 400, "POST", lockPath("s"), `{"limit":4}`)
	if p.Type != wire.TypeLimit || p.Field != "limit" || p.Value != "4" || p.Bound != "3" || p.InForce == nil || *p.InForce != 3 {
		t.Errorf("problem %+v", p)
	}
	p = want[wire.Problem](a, 400, "POST", lockPath("r"), `{"limit":4}`)
	if p.InForce == nil || *p.InForce != 0 {
		t.Errorf("problem %+v", p)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	for body, field := range map[string]string{
		`{"ttl":"0s"}`: "ttl", `{"ttl":"999ms"}`: "ttl", `{"ttl":"25h"}`: "ttl", `{"ttl":"-1s"}`: "ttl", `{"ttl":30}`: "ttl", `{"ttl":"30"}`: "ttl",
		`{"wait":"61s"}`: "wait", `{"wait":"-1s"}`: "wait",
		`{"limit":-1}`: "limit", `{"limit":1048577}`: "limit", `{"limit":1.5}`: "limit",
		`{"permits":0}`: "permits", `{"permits":2}`: "permits", `{"limit":2,"permits":3}`: "permits",
		`{"lease":"short"}`: "lease", `{"lease":"0123456789abcde!"}`: "lease",
		`{"owner":"a\u0000b"}`: "owner", `{"note":"\n"}`: "note",
		`{"what":1}`: "body",
		`{} {}`:      "body", `[]`: "body", `{`: "body", `nonsense`: "body", `{"owner":{"a":1}}`: "owner",
	} {
		got := a.call("POST", lockPath("x"), body)
		p := decode[wire.Problem](t, got)
		if got.status != 400 || p.Type != wire.TypeInvalid || p.Field != field || p.Detail == "" {
			t.Errorf("%s: status %d, %s; want 400 for field %q", body, got.status, got.body, field)
		}
	}
	if l := a.inspect("x"); len(l.Holders) != 0 {
		t.Errorf("something was taken: %+v", l)
	}
	for _, keep := range []string{"soon", "-1s"} {
		got := a.call("POST", lockPath("x"), `{"lease":"0123456789abcdef"}`, wire.HeaderKeepPlace, keep)
		if got.status != 400 {
			t.Errorf("keep %q: status %d", keep, got.status)
		}
	}
}

func TestBackendAway(t *testing.T) {
	t.Parallel()
	virtual(t, inMemory, server.Config{}, func(t *testing.T, a *api) { //nolint:thelper // it is the test
		g := a.take("x", `{"ttl":"1h"}`)
		a.b.away.Store(true)
		for _, r := range []struct{ method, path, body string }{
			{"POST", lockPath("y"), `{}`},
			{"POST", lockPath("y"), `{"wait":"100ms"}`},
			{"POST", lockPath("y"), `{"lease":"my-own-lease-0001"}`},
			{"POST", lockPath("y"), `{"lease":"my-own-lease-0001","wait":"100ms"}`},
			{"PUT", lockPath("x") + "/leases/" + g.Lease, `{}`},
			{"DELETE", lockPath("x") + "/leases/" + g.Lease, ``},
			{"GET", lockPath("x"), ``},
			{"GET", "/v1/locks", ``},
			{"DELETE", lockPath("x"), ``},
		} {
			got := a.call(r.method, r.path, r.body)
			p := decode[wire.Problem](t, got)
			if got.status != 503 || p.Type != wire.TypeUnavailable || p.MayHold == nil || got.header.Get("Retry-After") == "" {
				t.Errorf("%s %s %s: status %d: %s", r.method, r.path, r.body, got.status, got.body)
			}
		}
		res := want[wire.RenewManyResponse](a, 200, "POST", "/v1/leases/renew", `{"leases":[{"name":"x","lease":"`+g.Lease+`"}]}`)
		if e := res.Leases[0].Error; e == nil || e.Status != 503 {
			t.Errorf("batch %+v", res)
		}
		want[wire.Health](a, 200, "GET", "/healthz", "")
		a.b.away.Store(false)
		leasetest.Eventually(t, "the lease is renewed", func() bool { return a.call("PUT", lockPath("x")+"/leases/"+g.Lease, `{}`).status == 200 })
		// The client can still get its lease: nothing was abandoned for it.
		a.take("y", `{"lease":"my-own-lease-0001"}`)
	})
}

func TestRenewMany(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	g, h := a.take("a/b", `{}`), a.take("b", `{"limit":2}`)
	body := fmt.Sprintf(`{"leases":[{"name":"a/b","lease":%q,"ttl":"1m"},{"name":"b","lease":"0000000000000000"},{"name":"b","lease":%q},{"name":"","lease":"x"},{"name":"b","lease":%q,"ttl":"1ms"}]}`,
		g.Lease, h.Lease, h.Lease)
	got := want[wire.RenewManyResponse](a, 200, "POST", "/v1/leases/renew", body).Leases
	if len(got) != 5 {
		t.Fatalf("%d results", len(got))
	}
	if got[0].Error != nil || got[0].Token != g.Token || got[0].TTL.String() != "1m0s" || got[2].Error != nil || got[2].Token != h.Token {
		t.Errorf("results %+v", got)
	}
	for i, status := range map[int]int{1: 410, 3: 400, 4: 400} {
		if e := got[i].Error; e == nil || e.Status != status {
			t.Errorf("result %d: %+v, want a problem of %d", i, got[i], status)
		}
	}
	for _, bad := range []string{`{}`, `{"leases":[]}`, `{"leases":[{"name":"a","lease":"b","what":1}]}`} {
		if got := a.call("POST", "/v1/leases/renew", bad); got.status != 400 {
			t.Errorf("%s: status %d", bad, got.status)
		}
	}
}

// Tokens above 2^53 are transferred unchanged.
func TestBigToken(t *testing.T) {
	t.Parallel()
	const big = 1<<63 - 1
	p := wire.Grant{Token: big}
	b := &tokenBackend{Backend: memlock.New()}
	a := serve(t, &faulty{Backend: b}, server.Config{})
	got := a.call("POST", lockPath("x"), `{}`)
	if g := decode[wire.Grant](t, got); g.Token != p.Token {
		t.Errorf("token %d in %s", g.Token, got.body)
	}
	if want := []byte(`"token":9223372036854775807`); !contains(got.body, want) {
		t.Errorf("%s has no %s", got.body, want)
	}
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	b := memlock.New()
	defer b.Close()
	for _, cfg := range []server.Config{
		{DefaultTTL: time.Hour * 48},
		{Limits: server.Limits{Waiters: -1}},
		{Limits: server.Limits{Wait: -1}},
		{Limits: server.Limits{MinTTL: time.Hour, MaxTTL: time.Minute}},
		{PlaceTTL: -time.Second},
	} {
		if _, err := server.New(b, cfg); err == nil {
			t.Errorf("New(%+v) is no error", cfg)
		}
	}
	if _, err := server.New(sessionless{b}, server.Config{PlaceTTL: -time.Second}); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("New with a negative PlaceTTL, on a backend without sessions: %v", err)
	}
	if _, err := server.New(untimed{b}, server.Config{}); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("New on a backend without timed leases: %v", err)
	}
	if _, err := server.New(nil, server.Config{}); err == nil {
		t.Error("New(nil) is no error")
	}
}

// Waiters without their own lease IDs are listed without one, so that no client can push
// another out of the queue.
func TestWaiterLeases(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	a.take("x", `{}`)
	a.send("POST", lockPath("x"), `{"wait":"60s"}`)
	a.waiters("x", 1)
	if w := want[wire.Lock](a, 200, "GET", lockPath("x"), "").Waiters; w[0].Lease != "" {
		t.Errorf("waiter %+v", w[0])
	}
	w := a.inspect("x").Waiters[0]
	if err := backend.ValidateLeaseID(backend.LeaseID(w.Lease)); err != nil {
		t.Error(err)
	}
	a.release("x", w.Lease, 204) // leaves the queue; the request may join it again, under another lease
	if slices.ContainsFunc(a.inspect("x").Waiters, func(other wire.Waiter) bool { return other.Lease == w.Lease }) {
		t.Error("the place is there")
	}
}

func TestNotModifiedByHead(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	for _, path := range []string{"/", "/healthz", "/readyz", "/v1/locks", lockPath("x"), "/openapi.json", "/metrics", "/v1/events"} {
		if got := a.call(http.MethodHead, path, ""); got.status != 200 || len(got.body) != 0 {
			t.Errorf("HEAD %s: status %d, %d bytes", path, got.status, len(got.body))
		}
	}
}

// untimed is a backend without timed leases.
type untimed struct{ backend.Backend }

func (u untimed) Capabilities() backend.Capabilities {
	c := u.Backend.Capabilities()
	c.Timed = false
	return c
}

// A renewal without a TTL keeps that of the lease, one by one and many at once: on the server that granted it, on
// another one, and after another TTL.
func TestRenewalKeepsTheTTL(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore()
	a, other := startOn(t, store, server.Config{}), startOn(t, store, server.Config{})
	g := a.take("x", `{"ttl":"2h"}`)
	check := func(what string, ttl time.Duration, r wire.RenewResult) {
		t.Helper()
		if left := time.Until(r.ExpiresAt.Time); r.Error != nil || time.Duration(r.TTL) != ttl || left < ttl/2 || left > ttl {
			t.Errorf("%s: %+v, want %s", what, r, ttl)
		}
	}
	one := func(a *api, body string) wire.RenewResult {
		return want[wire.RenewResult](a, 200, "PUT", lockPath("x")+"/leases/"+g.Lease, body)
	}
	many := func(a *api) wire.RenewResult {
		got := want[wire.RenewManyResponse](a, 200, "POST", "/v1/leases/renew", `{"leases":[{"name":"x","lease":"`+g.Lease+`"}]}`)
		return got.Leases[0]
	}
	for what, a := range map[string]*api{"the server that granted it": a, "another server": other} {
		check(what+", one", 2*time.Hour, one(a, `{}`))
		check(what+", without a body", 2*time.Hour, one(a, ``))
		check(what+", many", 2*time.Hour, many(a))
	}
	check("a new TTL", time.Hour, one(a, `{"ttl":"1h"}`))
	check("after a new TTL", time.Hour, one(other, `{}`))
}
