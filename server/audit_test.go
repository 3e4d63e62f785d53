package server_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// Each refusal has a line with who sent what: of a request, of an item of a batch, and without an identity.
func TestAudit(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	a := start(t, server.Config{Authorize: operatorsBreak, Identify: caller, Audit: log.logger()})
	want[wire.Problem](a, 401, "GET", lockPath("x"), "")
	want[wire.Problem](a, 403, "DELETE", lockPath("x"), "", "Authorization", "bob", wire.HeaderActor, "alice")
	want[wire.Break](a, 200, "DELETE", lockPath("x")+"?reason=why", "", "Authorization", "op", wire.HeaderActor, "alice")
	refused := log.acts("refused")
	if len(refused) != 2 {
		t.Fatalf("%d lines: %v", len(refused), refused)
	}
	for i, want := range []map[string]any{
		{"principal": "", "verb": "read", "lock": "x", "method": "GET", "not_written": 0.0},
		{"principal": "bob", "verb": "break", "lock": "x", "method": "DELETE", "error": "operators only"},
	} {
		for key, val := range want {
			if refused[i][key] != val {
				t.Errorf("line %d: %s is %v, want %v", i, key, refused[i][key], val)
			}
		}
	}
	if broke := log.acts("break"); len(broke) != 1 || broke[0]["principal"] != "op" || broke[0]["claimed"] != "alice" {
		t.Errorf("%v", broke)
	}
}

// Each session of the page has two lines.
func TestAuditOfActs(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	a := start(t, server.Config{Authorize: operatorsBreak, Identify: caller, Audit: log.logger()})
	cookie := a.signIn(t, "op", `{"break":true}`)
	a.call("DELETE", sessionPath, "", a.with(cookie)...)
	wanted := []map[string]any{{"action": "open", "break": true, "principal": "op"}, {"action": "end", "principal": "op"}}
	lines := log.acts("session")
	if len(lines) != len(wanted) {
		t.Fatalf("%d lines: %v", len(lines), lines)
	}
	for i, w := range wanted {
		for key, val := range w {
			if lines[i][key] != val {
				t.Errorf("line %d: %s is %v, want %v", i, key, lines[i][key], val)
			}
		}
	}
}

// An attempt to renew or release the lease of another principal, of a holder or a waiter, has a line, and the answer
// is the same as for a lease that never existed.
func TestAuditOfLeasesOfOthers(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	a := start(t, server.Config{Authorize: operatorsBreak, Identify: caller, Audit: log.logger()})
	long := strings.Repeat("long-", 12)
	want[wire.Grant](a, 200, "POST", lockPath("x"), `{"ttl":"5m","lease":"a-lease-of-alice"}`, as("alice")...)
	want[wire.Grant](a, 200, "POST", lockPath("long"), fmt.Sprintf(`{"ttl":"5m","lease":%q}`, long), as("alice")...)
	a.send("POST", lockPath("x"), `{"wait":"60s","lease":"a-place-of-alice"}`, as("alice")...)
	a.waitersAs("op", "x", 1)
	shown := want[wire.Lock](a, 200, "GET", lockPath("x"), "", as("op")...).Holders[0].Lease
	ended := want[wire.Grant](a, 200, "POST", lockPath("y"), `{}`, as("bob")...)
	path := func(name, lease string) string { return lockPath(name) + "/leases/" + lease }
	if got := a.call("DELETE", path("y", ended.Lease), "", as("bob")...); got.status != 204 {
		t.Fatalf("release: %d %s", got.status, got.body)
	}
	wanted := make(map[string]int)
	for _, c := range []struct {
		who, name, lease string
		lines            int
	}{
		{"bob", "x", "a-lease-of-alice", 1},
		{"bob", "x", "a-place-of-alice", 1},
		{"bob", "long", long, 1},
		{"op", "x", shown, 1},
		{"bob", "x", "a-lease-of-no-one", 0},
		{"bob", "y", "a-lease-of-alice", 0},
		{"bob", "y", ended.Lease, 0},
	} {
		nothing := string(a.call("PUT", path("x", "there-was-no-such"), `{}`, as(c.who)...).body)
		for _, method := range []string{"PUT", "DELETE"} {
			if got := a.call(method, path(c.name, c.lease), "", as(c.who)...); got.status != 410 || string(got.body) != nothing {
				t.Errorf("%s of %s: %d %s", method, c.lease, got.status, got.body)
			}
		}
		ref := fmt.Sprintf(`[{"name":%q,"lease":%q}]`, c.name, c.lease)
		if p := want[wire.RenewManyResponse](a, 200, "POST", "/v1/leases/renew", `{"leases":`+ref+`}`, as(c.who)...).Leases[0].Error; p == nil || p.Status != 410 {
			t.Errorf("among many, %s: %+v", c.lease, p)
		}
		told(t, lines(t, a.call("POST", batchPath, `{"release":`+ref+`}`, as(c.who)...).body), map[string]int{"release 0": 410})
		for _, verb := range []server.Verb{server.Renew, server.Release} {
			wanted[fmt.Sprint(c.who, " ", verb, " ", c.name)] += 2 * c.lines
		}
	}
	if err := a.stop(); err != nil { // all lines are written
		t.Error(err)
	}
	got := make(map[string]int)
	for _, line := range log.acts("refused") {
		got[fmt.Sprint(line["principal"], " ", line["verb"], " ", line["lock"])]++
		if text := fmt.Sprint(line); line["error"] != "the lease belongs to another principal" || strings.Contains(text, "-of-alice") || strings.Contains(text, long) {
			t.Errorf("line %v", line)
		}
	}
	maps.DeleteFunc(wanted, func(_ string, n int) bool { return n == 0 })
	if !maps.Equal(got, wanted) {
		t.Errorf("lines %v, want %v", got, wanted)
	}
}

// inspected counts the reads of locks.
type inspected struct {
	backend.Backend
	n atomic.Int64
}

func (b *inspected) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	b.n.Add(1)
	return b.Backend.Inspect(ctx, name)
}

// A flood of lease IDs causes few reads, and takes no line from the refusals of others.
func TestReadsForTheAuditAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, b := &logBuffer{}, &inspected{Backend: memlock.NewStore().Open()}
		srv, err := server.New(b, server.Config{Authorize: operatorsBreak, Identify: caller, Audit: log.logger()})
		if err != nil {
			t.Fatal(err)
		}
		send := func(who, method, path string, status int) {
			t.Helper()
			req := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
			req.Header.Set("Authorization", who)
			answer := httptest.NewRecorder()
			if srv.ServeHTTP(answer, req); answer.Code != status {
				t.Errorf("%s %s: %d %s", method, path, answer.Code, answer.Body)
			}
		}
		for i := range 150 {
			send("bob", "DELETE", fmt.Sprintf("/v1/locks/x/leases/there-was-no-such-%03d", i), 410)
		}
		synctest.Wait()
		if n := b.n.Load(); n != 40 {
			t.Errorf("%d reads", n)
		}
		time.Sleep(time.Second)
		send("bob", "DELETE", "/v1/locks/x", 403)
		if lines := log.acts("refused"); len(lines) != 1 || lines[0]["not_written"] != 0.0 {
			t.Errorf("%v", lines)
		}
		if err := errors.Join(srv.Close(t.Context()), b.Close()); err != nil {
			t.Error(err)
		}
	})
}

// Refusals beyond a number in a second are counted on the next line.
func TestAuditIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &logBuffer{}
		refuse := server.Refusals(log.logger())
		for range 150 {
			refuse()
		}
		time.Sleep(time.Second)
		refuse()
		lines := log.acts("refused")
		if len(lines) != 101 || lines[99]["not_written"] != 0.0 || lines[100]["not_written"] != 50.0 {
			t.Errorf("%d lines, the last: %v", len(lines), lines[len(lines)-1])
		}
	})
}
