package server_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// operatorsBreak lets every named client do everything except break, which only "op" may.
func operatorsBreak(who string, act server.Action) error {
	switch {
	case act.Verb == server.Status && act.Path != "/metrics":
		return nil
	case who == "":
		return server.ErrUnauthenticated
	case act.Verb == server.Break && who != "op":
		return errors.New("operators only")
	}
	return nil
}

func caller(r *http.Request) (string, error) { return r.Header.Get("Authorization"), nil }

// identified is the Authorize that lets every caller with an identity do everything.
func identified(who string, _ server.Action) error {
	if who == "" {
		return server.ErrUnauthenticated
	}
	return nil
}

// Wherever the server reports leases, it shows the lease IDs and the notes of other clients, and who waits, only
// to clients that may break the lock: also in a refusal of what only these may do. The test visits the table of
// routes, so that no new route is forgotten.
func TestLeaseIDsOfOthersAreNotTold(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Authorize: operatorsBreak, Identify: caller})
	bob, op := []string{"Authorization", "bob"}, []string{"Authorization", "op"}
	stream := listen(t, a, "/v1/events", bob...)
	stream.next(t, "watching")
	const note, waiter = "the-note-of-alice", "the-waiter-of-alice"
	g := want[wire.Grant](a, 200, "POST", lockPath("team-a/x"), `{"ttl":"5m","note":"`+note+`"}`, "Authorization", "alice")
	const waiting = "alice-waits-0001"
	queue := a.send("POST", lockPath("team-a/x"), `{"wait":"60s","owner":"`+waiter+`","note":"`+note+`","lease":"`+waiting+`"}`, "Authorization", "alice")
	defer queue.cancel()
	leasetest.Eventually(t, "alice waits", func() bool {
		info, err := a.b.Inspect(t.Context(), "team-a/x")
		return err == nil && len(info.Waiters) == 1
	})
	mine := "bobs-own-lease-0"
	bodies := map[server.Verb]string{
		server.RenewMany: fmt.Sprintf(`{"leases":[{"name":"team-a/x","lease":%q}]}`, mine),
		server.Batch:     fmt.Sprintf(`{"acquire":[{"name":"team-a/x","lease":%q}],"release":[{"name":"team-a/x","lease":%q}]}`, mine, mine),
		server.Acquire:   `{"wait":"200ms"}`,
	}
	for _, r := range server.Routes() {
		if r.Verb == server.Watch {
			continue // tested below
		}
		for _, body := range []string{bodies[r.Verb], ""} {
			if body == "" && bodies[r.Verb] != "" && r.Verb != server.Acquire {
				continue
			}
			got := a.call(r.Method, somePath(r.Pattern), body, append(bob, wire.HeaderWaiterLeases, "true")...)
			for _, secret := range []string{g.Lease, waiting, note, waiter} {
				if strings.Contains(string(got.body), secret) {
					t.Errorf("%s %s tells it: %s", r.Method, r.Pattern, got.body)
				}
			}
		}
	}
	for _, kind := range []string{"acquired", "waiting"} {
		if e := stream.next(t, kind); e.Name != "team-a/x" || e.Lease != "" || e.Owner == waiter {
			t.Errorf("event %s tells %+v", kind, e)
		}
	}
	if l := want[wire.Lock](a, 200, "GET", lockPath("team-a/x"), "", append(op, wire.HeaderWaiterLeases, "true")...); !strings.HasPrefix(l.Holders[0].Lease, g.Lease) || !strings.HasPrefix(l.Waiters[0].Lease, waiting) {
		t.Errorf("an operator is told %+v", l)
	}
	if p := want[wire.Problem](a, 409, "POST", lockPath("team-a/x"), `{}`, op...); !strings.HasPrefix(p.Holders[0].Lease, g.Lease) {
		t.Errorf("an operator is told %+v", p.Holders)
	}
	queue.cancel()
	leasetest.Eventually(t, "alice has left the queue", func() bool {
		info, err := a.b.Inspect(t.Context(), "team-a/x")
		return err == nil && len(info.Waiters) == 0
	})
	want[wire.Break](a, 200, "DELETE", lockPath("team-a/x")+"?reason=r", "", op...)
	again := want[wire.Grant](a, 200, "POST", lockPath("team-a/x"), `{"ttl":"5m","note":"`+note+`"}`, "Authorization", "alice")
	if got := a.call("DELETE", lockPath("team-a/x")+"/leases/"+again.Lease, "", "Authorization", "alice"); got.status != 204 {
		t.Errorf("release: %d %s", got.status, got.body)
	}
	kinds := make(map[string]bool)
	for !kinds["released"] {
		kind, data := stream.event(t)
		kinds[kind] = true
		for _, secret := range []string{g.Lease, again.Lease, waiting, note, waiter} {
			if strings.Contains(data, secret) {
				t.Errorf("event %s tells it: %s", kind, data)
			}
		}
	}
	if !kinds["left"] || !kinds["broken"] || !kinds["acquired"] {
		t.Errorf("the stream has only %v", kinds)
	}
}

// A waiter whose right or token is withdrawn while it waits is refused, and the lock is free again.
func TestRightEndsWhileWaiting(t *testing.T) {
	t.Parallel()
	expired, noRight := fmt.Errorf("the token is not valid: %w", server.ErrExpired), errors.New("not any more")
	for what, c := range map[string]struct {
		identity, right error
		status          int
	}{
		"right":           {nil, noRight, 403},
		"token":           {fmt.Errorf("%w: the token is that of no principal", server.ErrUnauthenticated), nil, 401},
		"time":            {expired, nil, 200}, // the next request has a newer token
		"time, and right": {expired, noRight, 403},
	} {
		for name, id := range map[string]string{"made by the server": "", "made by the client": "a-lease-of-my-own"} {
			t.Run(what+", "+name, func(t *testing.T) {
				t.Parallel()
				var withdrawn atomic.Bool
				ends := func(who string) bool { return withdrawn.Load() && who == "alice" }
				a := start(t, server.Config{Identify: func(r *http.Request) (string, error) {
					who, _ := caller(r)
					if ends(who) && c.identity != nil {
						return "", c.identity
					}
					return who, nil
				}, Authorize: func(who string, act server.Action) error {
					if ends(who) && c.right != nil {
						return c.right
					}
					return identified(who, act)
				}})
				g := want[wire.Grant](a, 200, "POST", lockPath("x"), `{"ttl":"5m"}`, "Authorization", "bob")
				next := a.send("POST", lockPath("x"), fmt.Sprintf(`{"ttl":"5m","wait":"50s","lease":%q}`, id), "Authorization", "alice")
				a.waitersAs("bob", "x", 1)
				withdrawn.Store(true)
				if got := a.call("DELETE", lockPath("x")+"/leases/"+g.Lease, "", "Authorization", "bob"); got.status != 204 {
					t.Fatalf("release: %d %s", got.status, got.body)
				}
				got := next.get(t)
				if got.status != c.status {
					t.Fatalf("the waiter got %d %s", got.status, got.body)
				}
				if c.status == 200 {
					withdrawn.Store(false) // its newer token
					lease := decode[wire.Grant](t, got).Lease
					if got := a.call("DELETE", lockPath("x")+"/leases/"+lease, "", "Authorization", "alice"); got.status != 204 {
						t.Fatalf("the waiter's release: %d %s", got.status, got.body)
					}
				}
				if again := want[wire.Grant](a, 200, "POST", lockPath("x"), `{"ttl":"5s","wait":"50s"}`, "Authorization", "bob"); again.Token <= g.Token {
					t.Errorf("token %d after %d", again.Token, g.Token)
				}
			})
		}
	}
}

// The stream of a client that may no longer watch ends with the reason, also when nothing happens to the locks. The
// stream of another client, and of one whose identity cannot be verified at the moment, continues.
func TestRightEndsWhileWatching(t *testing.T) {
	t.Parallel()
	var withdrawn atomic.Bool
	a := start(t, server.Config{Heartbeat: 20 * time.Millisecond, Authorize: identified, Identify: func(r *http.Request) (string, error) {
		switch who, _ := caller(r); {
		case !withdrawn.Load() || who == "bob":
			return who, nil
		case who == "carol":
			return "", &backend.UnavailableError{Backend: "issuer", Op: "read the keys for tokens", Err: errors.New("no answer")}
		default:
			return "", fmt.Errorf("%w: the token is that of no principal", server.ErrUnauthenticated)
		}
	}})
	streams := make(map[string]*sse)
	for _, who := range []string{"alice", "bob", "carol"} {
		streams[who] = listen(t, a, "/v1/events", "Authorization", who)
		streams[who].next(t, "watching")
	}
	withdrawn.Store(true)
	if kind, data := streams["alice"].event(t); kind != "error" || !strings.Contains(data, "no principal") {
		t.Errorf("alice's stream has %s %s", kind, data)
	}
	if kind, data := streams["alice"].event(t); kind != "" {
		t.Errorf("alice's stream continues with %s %s", kind, data)
	}
	for _, who := range []string{"bob", "carol"} {
		for beats := 0; beats < 3; {
			line, ok := streams[who].line(t)
			if !ok || strings.HasPrefix(line, "event: error") {
				t.Fatalf("%s's stream has ended: %q", who, line)
			}
			if strings.HasPrefix(line, ": beat") {
				beats++
			}
		}
	}
}

// Who may break a lock breaks one lease of several, by the ID that this principal is shown: its own, or
// that of another.
func TestBreakOne(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Authorize: operatorsBreak, Identify: caller})
	for _, who := range []string{"alice", "bob", "op"} {
		want[wire.Grant](a, 200, "POST", lockPath("x"), `{"ttl":"5m","shared":true}`, "Authorization", who)
	}
	for left := 3; left > 0; left-- {
		l := want[wire.Lock](a, 200, "GET", lockPath("x"), "", "Authorization", "op")
		if len(l.Holders) != left {
			t.Fatalf("%d hold it, want %d: %+v", len(l.Holders), left, l.Holders)
		}
		h := l.Holders[left-1]
		want[wire.Problem](a, 403, "DELETE", lockPath("x")+"?lease="+h.Lease, "", "Authorization", "alice")
		if got := want[wire.Break](a, 200, "DELETE", lockPath("x")+"?lease="+h.Lease, "", "Authorization", "op"); len(got.Broken) != 1 || got.Broken[0].Lease != h.Lease || got.Broken[0].Token != h.Token {
			t.Errorf("break of %s: %+v", h.Lease, got)
		}
	}
}

// When callers have names, a lease belongs to its principal: for another one there is no lease with that
// ID. The store keeps that, not the server.
func TestLeaseOfAnother(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore()
	named := server.Config{Authorize: operatorsBreak, Identify: caller}
	first, a := startOn(t, store, named), startOn(t, store, named)
	alice := []string{"Authorization", "alice"}
	for name, id := range map[string]string{
		"made by the server": "", "made by the client": "a-lease-of-alice", "long": strings.Repeat("long-", 12),
		"in the form of one in the store": "a-lease-of-alice-ABCDEFGHIJKLMNOP",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name := strings.ReplaceAll(name, " ", "-")
			g := want[wire.Grant](first, 200, "POST", lockPath(name), fmt.Sprintf(`{"ttl":"5m","note":"secret","lease":%q}`, id), alice...)
			if id != "" && g.Lease != id {
				t.Errorf("granted %q, requested %q", g.Lease, id)
			}
			ref := fmt.Sprintf(`{"name":%q,"lease":%q}`, name, g.Lease)
			info, err := a.b.Inspect(t.Context(), name)
			if err != nil || len(info.Holders) != 1 {
				t.Fatalf("%+v, %v", info, err)
			}
			for _, who := range []string{"bob", "op"} {
				for _, lease := range []string{g.Lease, string(info.Holders[0].Lease)} {
					a.refusedAs(t, who, name, lease)
				}
			}
			if l := want[wire.Lock](a, 200, "GET", lockPath(name), "", "Authorization", "bob"); l.Holders[0].Lease != "" || l.Holders[0].Note != "" {
				t.Errorf("bob sees %+v", l)
			}
			if l := want[wire.Lock](a, 200, "GET", lockPath(name), "", alice...); len(id) < 48 && l.Holders[0].Lease != g.Lease || l.Holders[0].Note != "secret" {
				t.Errorf("alice sees %+v", l)
			}
			if l := want[wire.Lock](first, 200, "GET", lockPath(name), "", alice...); l.Holders[0].Lease != g.Lease {
				t.Errorf("where it was granted alice sees %+v", l)
			}
			if again := want[wire.Grant](a, 200, "POST", lockPath(name), fmt.Sprintf(`{"lease":%q}`, g.Lease), alice...); again.Token != g.Token || again.Lease != g.Lease {
				t.Errorf("%+v, not %+v again", again, g)
			}
			lease := lockPath(name) + "/leases/" + g.Lease
			if r := want[wire.RenewResult](a, 200, "PUT", lease, `{}`, alice...); r.Lease != g.Lease {
				t.Errorf("renewed %+v", r)
			}
			many := want[wire.RenewManyResponse](a, 200, "POST", "/v1/leases/renew", `{"leases":[`+ref+`]}`, alice...)
			if r := many.Leases[0]; r.Error != nil || r.Lease != g.Lease {
				t.Errorf("renewed %+v", r)
			}
			if got := a.call("DELETE", lease, "", alice...); got.status != 204 {
				t.Errorf("release: status %d %s", got.status, got.body)
			}
		})
	}
}

// refusedAs tries to use the lease of another client.
func (a *api) refusedAs(t *testing.T, who, name, lease string) {
	t.Helper()
	path, ref := lockPath(name)+"/leases/"+lease, fmt.Sprintf(`{"name":%q,"lease":%q}`, name, lease)
	got := a.call("POST", batchPath, `{"acquire":[`+ref+`]}`, "Authorization", who)
	told(t, lines(t, got.body), map[string]int{"acquire 0": 409})
	for _, c := range []struct {
		want               int
		method, path, body string
	}{
		{409, "POST", lockPath(name), fmt.Sprintf(`{"lease":%q}`, lease)},
		{410, "PUT", path, `{}`},
		{410, "DELETE", path, ""},
		{410, "POST", lockPath(name), fmt.Sprintf(`{"lease":%q,"wait":"200ms"}`, lease)}, // it was released before
	} {
		if got := a.call(c.method, c.path, c.body, "Authorization", who); got.status != c.want {
			t.Errorf("%s %s %s of %s: %d %s", c.method, c.path, c.body, who, got.status, got.body)
		}
	}
	res := want[wire.RenewManyResponse](a, 200, "POST", "/v1/leases/renew", `{"leases":[`+ref+`]}`, "Authorization", who)
	if p := res.Leases[0].Error; p == nil || p.Status != 410 {
		t.Errorf("a batch of renewals of %s: %+v", who, p)
	}
	got = a.call("POST", batchPath, `{"release":[`+ref+`]}`, "Authorization", who)
	told(t, lines(t, got.body), map[string]int{"release 0": 410})
}

// Authorize is called with the lease that an acquire names, alone and in a batch.
func TestAuthorizeIsAskedAboutTheLease(t *testing.T) {
	t.Parallel()
	const theirs backend.LeaseID = "a-lease-of-alice"
	a := start(t, server.Config{Authorize: func(_ string, act server.Action) error {
		if act.Lease == theirs {
			return errors.New("not yours")
		}
		return nil
	}})
	want[wire.Problem](a, 403, "POST", lockPath("x"), `{"lease":"a-lease-of-alice"}`)
	got := a.batch(`{"acquire":[{"name":"x","lease":"a-lease-of-alice"},{"name":"x","lease":"another-lease-00"}]}`)
	told(t, got, map[string]int{"acquire 0": 403, "acquire 1": 200})
}
