package server_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// operatorsBreak lets every named client do everything except break, which only "op" may.
func operatorsBreak(r *http.Request, act server.Action) error {
	switch who := caller(r); {
	case who == "":
		return server.ErrUnauthenticated
	case act.Verb == server.Break && who != "op":
		return errors.New("operators only")
	}
	return nil
}

func caller(r *http.Request) string { return r.Header.Get("Authorization") }

// Wherever the server reports leases, it shows the lease IDs of other clients only to clients
// that may break the lock. The test visits the table of routes, so that no new route is
// forgotten.
func TestLeaseIDsOfOthersAreNotTold(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Authorize: operatorsBreak})
	bob, op := []string{"Authorization", "bob"}, []string{"Authorization", "op"}
	stream := listen(t, a, "/v1/events", bob...)
	stream.next(t, "watching")
	g := want[wire.Grant](a, 200, "POST", lockPath("team-a/x"), `{"ttl":"5m"}`, "Authorization", "alice")
	const waiting = "alice-waits-0001"
	queue := a.send("POST", lockPath("team-a/x"), `{"wait":"60s","lease":"`+waiting+`"}`, "Authorization", "alice")
	defer queue.cancel()
	leasetest.Eventually(t, "alice waits", func() bool {
		info, err := a.b.Inspect(t.Context(), "team-a/x")
		return err == nil && len(info.Waiters) == 1
	})
	mine := "bobs-own-lease-0"
	bodies := map[server.Verb]string{
		server.RenewMany: fmt.Sprintf(`{"leases":[{"name":"team-a/x","lease":%q}]}`, mine),
		server.Batch:     fmt.Sprintf(`{"acquire":[{"name":"team-a/x","lease":%q}],"release":[{"name":"team-a/x","lease":%q}]}`, mine, mine),
		server.Acquire:   `{"wait":"1ms"}`,
	}
	for _, r := range server.Routes() {
		if r.Verb == server.Watch || r.Verb == server.Break {
			continue // tested below; refused
		}
		for _, body := range []string{bodies[r.Verb], ""} {
			if body == "" && bodies[r.Verb] != "" && r.Verb != server.Acquire {
				continue
			}
			got := a.call(r.Method, somePath(r.Pattern), body, append(bob, wire.HeaderWaiterLeases, "true")...)
			for _, secret := range []string{g.Lease, waiting} {
				if strings.Contains(string(got.body), secret) {
					t.Errorf("%s %s tells a lease ID: %s", r.Method, r.Pattern, got.body)
				}
			}
		}
	}
	for _, kind := range []string{"acquired", "waiting"} {
		if e := stream.next(t, kind); e.Name != "team-a/x" || e.Lease != "" {
			t.Errorf("event %s tells %+v", kind, e)
		}
	}
	if l := want[wire.Lock](a, 200, "GET", lockPath("team-a/x"), "", append(op, wire.HeaderWaiterLeases, "true")...); l.Holders[0].Lease != g.Lease || l.Waiters[0].Lease != waiting {
		t.Errorf("an operator is told %+v", l)
	}
	if p := want[wire.Problem](a, 409, "POST", lockPath("team-a/x"), `{}`, op...); p.Holders[0].Lease != g.Lease {
		t.Errorf("an operator is told %+v", p.Holders)
	}
}

// When callers have names, a lease ID is not enough to take over, renew or release a lease.
func TestLeaseOfAnother(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Authorize: operatorsBreak, Principal: caller})
	g := want[wire.Grant](a, 200, "POST", lockPath("x"), `{"ttl":"5m"}`, "Authorization", "alice")
	lease := lockPath("x") + "/leases/" + g.Lease
	ref := fmt.Sprintf(`{"name":"x","lease":%q}`, g.Lease)
	for _, who := range []string{"bob", "op"} {
		for _, c := range []struct{ method, path, body string }{
			{"POST", lockPath("x"), fmt.Sprintf(`{"lease":%q}`, g.Lease)},
			{"POST", lockPath("x"), fmt.Sprintf(`{"lease":%q,"wait":"1ms"}`, g.Lease)},
			{"PUT", lease, `{}`},
			{"DELETE", lease, ""},
		} {
			if p := want[wire.Problem](a, 403, c.method, c.path, c.body, "Authorization", who); p.Type != wire.TypeForbidden {
				t.Errorf("%s %s %s of %s: %+v", c.method, c.path, c.body, who, p)
			}
		}
		res := want[wire.RenewManyResponse](a, 200, "POST", "/v1/leases/renew", `{"leases":[`+ref+`]}`, "Authorization", who)
		if p := res.Leases[0].Error; p == nil || p.Status != 403 {
			t.Errorf("a batch of renewals of %s: %+v", who, p)
		}
		got := a.call("POST", batchPath, `{"acquire":[`+ref+`],"release":[`+ref+`]}`, "Authorization", who)
		told(t, lines(t, got.body), map[string]int{"acquire 0": 403, "release 0": 403})
	}
	if again := want[wire.Grant](a, 200, "POST", lockPath("x"), fmt.Sprintf(`{"lease":%q}`, g.Lease), "Authorization", "alice"); again.Token != g.Token {
		t.Errorf("%+v, not %+v again", again, g)
	}
	want[wire.RenewResult](a, 200, "PUT", lease, `{}`, "Authorization", "alice")
	if got := a.call("DELETE", lease, "", "Authorization", "alice"); got.status != 204 {
		t.Errorf("release: status %d", got.status)
	}
}

// Authorize is called with the lease that an acquire names, alone and in a batch.
func TestAuthorizeIsAskedAboutTheLease(t *testing.T) {
	t.Parallel()
	const theirs backend.LeaseID = "a-lease-of-alice"
	a := start(t, server.Config{Authorize: func(_ *http.Request, act server.Action) error {
		if act.Lease == theirs {
			return errors.New("not yours")
		}
		return nil
	}})
	want[wire.Problem](a, 403, "POST", lockPath("x"), `{"lease":"a-lease-of-alice"}`)
	got := a.batch(`{"acquire":[{"name":"x","lease":"a-lease-of-alice"},{"name":"x","lease":"another-lease-00"}]}`)
	told(t, got, map[string]int{"acquire 0": 403, "acquire 1": 200})
}
