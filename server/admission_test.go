package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// waitersAs is waiters for a principal.
func (a *api) waitersAs(who, name string, n int) {
	a.t.Helper()
	leasetest.Eventually(a.t, "the queue has the right length", func() bool {
		return len(want[wire.Lock](a, 200, "GET", lockPath(name), "", as(who)...).Waiters) == n
	})
}

// shared is a server for clients that say who they are, each with the quota.
func shared(t *testing.T, l server.Limits, q server.Quota) *api {
	t.Helper()
	return start(t, server.Config{
		Authorize: func(string, server.Action) error { return nil }, Identify: caller, Limits: l,
		Quota: func(string) server.Quota { return q },
	})
}

func as(who string) []string { return []string{"Authorization", who} }

// tooMany expects a request to be refused by a quota.
func (a *api) tooMany(method, path, body string, header ...string) {
	a.t.Helper()
	a.isTooMany(a.call(method, path, body, header...), method+" "+path+" "+body)
}

func (a *api) isTooMany(got answer, what string) {
	a.t.Helper()
	if p := decode[wire.Problem](a.t, got); got.status != 429 || p.Type != wire.TypeTooMany || got.header.Get("Retry-After") == "" || *p.MayHold {
		a.t.Errorf("%s: %d %s", what, got.status, got.body)
	}
}

// soonTooMany repeats a call until it is one too many: a busy machine may take a second between two.
func soonTooMany(a *api, method, path string) {
	a.t.Helper()
	const most = 20 // each takes a second at least, or the limit is another
	for range most {
		if got := a.call(method, path, "", as("greedy")...); got.status == http.StatusTooManyRequests {
			a.isTooMany(got, method+" "+path)
			return
		}
	}
	a.t.Errorf("%s %s: %d calls were not too many", method, path, most)
}

// A client at all its limits renews and releases, and leaves the others alone.
func TestQuotas(t *testing.T) {
	t.Parallel()
	a := shared(t, server.Limits{}, server.Quota{Locks: 3, Waiters: 2})
	greedy, other := as("greedy"), as("other")
	var held []wire.Grant
	for i := range 2 {
		held = append(held, want[wire.Grant](a, 200, "POST", lockPath(fmt.Sprint("x", i)), `{"ttl":"5m"}`, greedy...))
	}
	got := lines(t, a.call("POST", batchPath, `{"acquire":[{"name":"x2","lease":"the-lease-of-a-2"},{"name":"x3","lease":"the-lease-of-a-3"}]}`, greedy...).body)
	if (got["acquire 0"].Error == nil) == (got["acquire 1"].Error == nil) {
		t.Errorf("two acquires with room for one: %+v", got)
	}
	a.tooMany("POST", lockPath("x4"), `{}`, greedy...)
	// A lease that is held may be requested again: the first answer may have been lost.
	again := fmt.Sprintf(`{"lease":%q,"ttl":"5m"}`, held[0].Lease)
	if g := want[wire.Grant](a, 200, "POST", lockPath("x0"), again, greedy...); g.Token != held[0].Token {
		t.Errorf("%+v, not %+v again", g, held[0])
	}
	lease := lockPath("x0") + "/leases/" + held[0].Lease
	want[wire.RenewResult](a, 200, "PUT", lease, `{}`, greedy...)

	want[wire.Grant](a, 200, "POST", lockPath("y"), `{}`, other...)
	if got := a.call("DELETE", lease, "", greedy...); got.status != 204 {
		t.Errorf("release: %d %s", got.status, got.body)
	}
	want[wire.Grant](a, 200, "POST", lockPath("x4"), `{"ttl":"5m"}`, greedy...)
}

// Waiters of a client are bounded together, whatever they wait for.
func TestQuotaOfWaiters(t *testing.T) {
	t.Parallel()
	a := shared(t, server.Limits{}, server.Quota{Waiters: 2})
	for i := range 3 {
		want[wire.Grant](a, 200, "POST", lockPath(fmt.Sprint("x", i)), `{"ttl":"5m"}`, as("holder")...)
	}
	for i := range 2 {
		a.send("POST", lockPath(fmt.Sprint("x", i)), `{"wait":"60s"}`, as("greedy")...)
		a.waitersAs("holder", fmt.Sprint("x", i), 1)
	}
	a.tooMany("POST", lockPath("x2"), `{"wait":"60s"}`, as("greedy")...)
	want[wire.Problem](a, 409, "POST", lockPath("x2"), `{}`, as("greedy")...)
	a.send("POST", lockPath("x2"), `{"wait":"60s"}`, as("other")...)
	a.waitersAs("holder", "x2", 1)
}

// atOnce is a client that sends its next request as soon as the answer to the last one begins.
type atOnce struct {
	*httptest.ResponseRecorder

	next func()
}

// WriteHeader sends the next request.
func (w atOnce) WriteHeader(code int) {
	w.next()
	w.ResponseRecorder.WriteHeader(code)
}

// A client whose acquire is answered may use what that acquire used.
func TestQuotaAfterTheAnswer(t *testing.T) {
	t.Parallel()
	a := shared(t, server.Limits{}, server.Quota{Locks: 2, Waiters: 1})
	want[wire.Grant](a, 200, "POST", lockPath("held"), `{"ttl":"5m"}`, as("holder")...)
	send := func(path, body string, next func()) int {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, a.base+path, strings.NewReader(body))
		r.Header.Set("Authorization", "busy")
		a.srv.ServeHTTP(atOnce{w, next}, r)
		return w.Code
	}
	for _, c := range []struct {
		path, body, next string
		first, second    int
	}{
		{lockPath("held"), `{"wait":"1ms"}`, lockPath("held"), 409, 409},
		{lockPath("one"), `{"ttl":"5m"}`, lockPath("two"), 200, 200},
		{lockPath("three"), `{"ttl":"5m"}`, lockPath("four"), 429, 429},
	} {
		second := 0
		first := send(c.path, c.body, func() { second = send(c.next, c.body, func() {}) })
		if first != c.first || second != c.second {
			t.Errorf("%s was answered with %d, and %s in that moment with %d; want %d, %d", c.path, first, c.next, second, c.first, c.second)
		}
	}
}

// Requests in a second are bounded, each acquire of a batch is one, and renewals are none.
func TestQuotaOfRequests(t *testing.T) {
	t.Parallel()
	a := shared(t, server.Limits{}, server.Quota{Requests: 1})
	g := want[wire.Grant](a, 200, "POST", lockPath("x"), `{"ttl":"5m"}`, as("greedy")...)
	soonTooMany(a, "GET", lockPath("x"))
	soonTooMany(a, "GET", "/v1/locks")
	leasetest.Eventually(t, "an acquire of a batch is too many", func() bool {
		batch := fmt.Sprintf(`{"acquire":[{"name":"y%[1]s","lease":"%[1]s"}]}`, backend.NewLeaseID())
		res := lines(t, a.call("POST", batchPath, batch, as("greedy")...).body)["acquire 0"]
		return res.Error != nil && res.Error.Status == 429
	})
	lease := lockPath("x") + "/leases/" + g.Lease
	for range 5 {
		want[wire.RenewResult](a, 200, "PUT", lease, `{}`, as("greedy")...)
	}
	want[wire.Grant](a, 200, "POST", lockPath("y"), `{}`, as("other")...)
	if got := a.call("DELETE", lease, "", as("greedy")...); got.status != 204 {
		t.Errorf("release: %d %s", got.status, got.body)
	}
}

// A principal has half of the event streams of the server, again when one has ended. Without principals there is no such bound.
func TestHalfForOneClient(t *testing.T) {
	t.Parallel()
	a := shared(t, server.Limits{Events: 4}, server.Quota{})
	var last *sse
	for range 2 {
		last = listen(t, a, "/v1/events", as("greedy")...)
		last.next(t, "watching")
	}
	a.tooMany("GET", "/v1/events", "", as("greedy")...)
	for range 2 {
		listen(t, a, "/v1/events", as("other")...).next(t, "watching")
	}
	last.cancel()
	leasetest.Eventually(t, "there is room for another stream", func() bool {
		line, _ := listen(t, a, "/v1/events", as("greedy")...).line(t)
		return strings.HasPrefix(line, ":")
	})
	local := start(t, server.Config{Limits: server.Limits{Events: 4}})
	for range 4 {
		listen(t, local, "/v1/events").next(t, "watching")
	}
}

// unread is a client that reads nothing of its answer.
type unread struct {
	*httptest.ResponseRecorder

	begun *sync.WaitGroup
	end   <-chan struct{}
}

// Write blocks.
func (w unread) Write(b []byte) (int, error) {
	w.begun.Done()
	<-w.end
	return len(b), nil
}

// Clients that do not read their answers delay no breaks and no releases.
func TestUnreadAnswers(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	slots := server.CallsPerCPU * runtime.GOMAXPROCS(0)
	end := make(chan struct{})
	var begun, all sync.WaitGroup
	defer all.Wait()
	defer close(end)
	for _, path := range []string{lockPath("x"), "/v1/locks"} {
		for range slots {
			begun.Add(1)
			all.Go(func() {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, a.base+path, nil)
				a.srv.ServeHTTP(unread{httptest.NewRecorder(), &begun, end}, r)
			})
		}
	}
	begun.Wait()
	a.release("x", "a-lease-of-another-server", 410)
	want[wire.Break](a, 200, "DELETE", lockPath("x"), "")
}
