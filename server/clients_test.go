package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/leasetest"
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
		Authorize: func(*http.Request, server.Action) error { return nil }, Principal: caller, Limits: l,
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
	a := shared(t, server.Limits{}, server.Quota{Locks: 3, Waiters: 2, Streams: 1})
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
	listen(t, a, "/v1/events", greedy...).next(t, "watching")
	a.tooMany("GET", "/v1/events", "", greedy...)
	lease := lockPath("x0") + "/leases/" + held[0].Lease
	want[wire.RenewResult](a, 200, "PUT", lease, `{}`, greedy...)

	want[wire.Grant](a, 200, "POST", lockPath("y"), `{}`, other...)
	listen(t, a, "/v1/events", other...).next(t, "watching")

	if got := a.call("DELETE", lease, "", greedy...); got.status != 204 {
		t.Errorf("release: %d %s", got.status, got.body)
	}
	want[wire.Grant](a, 200, "POST", lockPath("x4"), `{"ttl":"5m"}`, greedy...)
}

// While a client is at all its limits and sends more than it may, another one acquires, watches and renews, and
// loses nothing.
func TestOthersOfOneAtItsLimits(t *testing.T) {
	t.Parallel()
	const senders = 12
	a := start(t, server.Config{
		Authorize: func(*http.Request, server.Action) error { return nil }, Principal: caller, Limits: server.Limits{ConnectionsPerIP: 1000},
		Quota: func(who string) server.Quota {
			if who == "greedy" {
				return server.Quota{Locks: 4, Waiters: 2, Streams: 1, Connections: senders / 2, Requests: 50, Bytes: 2000}
			}
			return server.Quota{}
		},
	})
	a.http.Transport = &http.Transport{MaxIdleConnsPerHost: 2 * senders}
	greedy, other := as("greedy"), as("other")
	for _, name := range []string{"full", "greedy"} {
		want[wire.Grant](a, 200, "POST", lockPath(name), `{"ttl":"10m"}`, greedy...)
	}
	for range 2 {
		a.send("POST", lockPath("full"), `{"wait":"60s"}`, greedy...)
	}
	a.waitersAs("other", "full", 2)
	a.tooMany("POST", lockPath("more"), `{}`, greedy...) // it holds two, and may soon hold two more
	listen(t, a, "/v1/events", greedy...).next(t, "watching")
	events := listen(t, a, "/v1/events?prefix=other%2F", other...)
	events.next(t, "watching")
	kept := want[wire.Grant](a, 200, "POST", lockPath("kept"), `{"ttl":"10m"}`, other...)

	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	var refused, wrong atomic.Int64
	for i := range senders {
		sending.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				c := [...]struct{ method, path, body string }{
					{"POST", lockPath("full"), `{"wait":"60s"}`},
					{"POST", lockPath(fmt.Sprint("more", n)), `{}`},
					{"GET", "/v1/events", ""},
					{"GET", "/v1/locks", ""},
					{"POST", batchPath, `{"acquire":[{"name":"full","lease":"the-lease-of-a-2"}]}`},
				}[n%5]
				got, err := a.do(ctx, c.method, c.path, c.body, greedy...)
				switch {
				case err != nil: // in the end, or where a connection is closed that is one too many
				case got.status == http.StatusTooManyRequests:
					refused.Add(1)
				case got.status != http.StatusOK:
					wrong.Store(int64(got.status))
				}
			}
		})
	}
	leasetest.Eventually(t, "a client is at all its limits", func() bool { return refused.Load() > 10*senders && a.srv.ConnectionsOf("greedy") >= senders/2 })
	for i := range 20 {
		name := fmt.Sprint("other/", i)
		g := want[wire.Grant](a, 200, "POST", lockPath(name), `{}`, other...)
		if e := events.next(t, "acquired"); e.Name != name {
			t.Errorf("an event of %s", e.Name)
		}
		want[wire.RenewResult](a, 200, "PUT", lockPath("kept")+"/leases/"+kept.Lease, `{"ttl":"10m"}`, other...)
		want[wire.Lock](a, 200, "GET", lockPath(name), "", other...)
		if got := a.call("DELETE", lockPath(name)+"/leases/"+g.Lease, "", other...); got.status != 204 {
			t.Errorf("release: %d %s", got.status, got.body)
		}
		events.next(t, "released")
	}
	if status := wrong.Load(); status != 0 {
		t.Errorf("a client beyond its limits got %d", status)
	}
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

// A client that was sent more than it may be gets nothing new until that is made up for. Its leases are renewed and
// released, its stream continues, and the others are left alone. One byte in a second: each answer takes a minute or more.
func TestQuotaOfBytes(t *testing.T) {
	t.Parallel()
	a := shared(t, server.Limits{}, server.Quota{Bytes: 1})
	greedy, watcher := as("greedy"), as("watcher")
	events := listen(t, a, "/v1/events", watcher...)
	events.next(t, "watching")
	g := want[wire.Grant](a, 200, "POST", lockPath("x"), `{"ttl":"5m"}`, greedy...)
	for _, path := range []string{lockPath("x"), "/v1/locks", "/v1/events"} {
		a.tooMany("GET", path, "", greedy...)
	}
	a.tooMany("POST", lockPath("y"), `{}`, greedy...)
	got := a.call("POST", lockPath("y"), `{}`, greedy...)
	if after, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || after != 10 {
		t.Errorf("Retry-After is %d: %v", after, err)
	}
	results := lines(t, a.call("POST", batchPath, `{"acquire":[{"name":"y","lease":"the-lease-of-a-2"}]}`, greedy...).body)
	told(t, results, map[string]int{"acquire 0": 429})
	lease := lockPath("x") + "/leases/" + g.Lease
	for range 5 {
		want[wire.RenewResult](a, 200, "PUT", lease, `{}`, greedy...)
	}
	many := want[wire.RenewManyResponse](a, 200, "POST", "/v1/leases/renew", fmt.Sprintf(`{"leases":[{"name":"x","lease":%q}]}`, g.Lease), greedy...)
	if many.Leases[0].Error != nil {
		t.Errorf("a renewal among many: %+v", many.Leases[0].Error)
	}
	if got := a.call("DELETE", lease, "", greedy...); got.status != 204 {
		t.Errorf("release: %d %s", got.status, got.body)
	}
	want[wire.Grant](a, 200, "POST", lockPath("y"), `{"lease":"the-lease-of-a-3"}`, as("other")...)
	results = lines(t, a.call("POST", batchPath, `{"release":[{"name":"y","lease":"the-lease-of-a-3"}]}`, as("other")...).body)
	told(t, results, map[string]int{"release 0": 200})
	for _, kind := range []string{"acquired", "released", "acquired"} {
		events.next(t, kind)
	}
	a.tooMany("GET", lockPath("x"), "", watcher...) // the stream is charged, and continues
	want[wire.Grant](a, 200, "POST", lockPath("x"), `{}`, as("last")...)
	for _, kind := range []string{"released", "acquired"} {
		events.next(t, kind)
	}
}

// Requests that are never refused take a bucket at most ten seconds below zero, and time refills every bucket.
func TestBytesAreMadeUpFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		charge, owes := server.Charges(100)
		for _, c := range []struct {
			verb server.Verb
			n    int
			want time.Duration
		}{
			{server.Read, 100, 0},
			{server.Read, 100, time.Second},
			{server.Renew, 100, 2 * time.Second},
			{server.Watch, 5000, 10 * time.Second},
			{server.List, 5000, time.Minute},
			{server.RenewMany, 5000, time.Minute},
		} {
			charge(c.n, c.verb)
			if got, forgotten := owes(); got != c.want || forgotten {
				t.Errorf("after %d bytes for %s: %s, want %s, forgotten: %t", c.n, c.verb, got, c.want, forgotten)
			}
		}
		time.Sleep(time.Minute + time.Second/2)
		if got, forgotten := owes(); got > 0 || forgotten {
			t.Errorf("after a minute: %s, forgotten: %t", got, forgotten)
		}
		time.Sleep(time.Hour)
		if _, forgotten := owes(); !forgotten {
			t.Error("a client that owes nothing is remembered")
		}
		charge(300, server.Read)
		if got, _ := owes(); got != 2*time.Second {
			t.Errorf("after an hour, 300 bytes: %s", got)
		}
	})
}

// Without a quota a client has half of what the server has.
func TestHalfForOneClient(t *testing.T) {
	t.Parallel()
	a := shared(t, server.Limits{Events: 4}, server.Quota{})
	for range 2 {
		listen(t, a, "/v1/events", as("greedy")...).next(t, "watching")
	}
	a.tooMany("GET", "/v1/events", "", as("greedy")...)
	for range 2 {
		listen(t, a, "/v1/events", as("other")...).next(t, "watching")
	}
	local := start(t, server.Config{Limits: server.Limits{Events: 4}})
	for range 4 { // a client on this host that is no principal
		listen(t, local, "/v1/events").next(t, "watching")
	}
}

// Without identities, clients beyond this host are bounded by their address, of IPv6 by their network.
func TestQuotaOfAnAddress(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Anonymous: true, Limits: server.Limits{Acquires: 4}})
	a.take("x", `{"ttl":"10m"}`)
	ask := func(ctx context.Context, from, body string) int {
		req := httptest.NewRequestWithContext(ctx, "POST", "http://127.0.0.1"+lockPath("x"), strings.NewReader(body))
		req.RemoteAddr = from
		answer := httptest.NewRecorder()
		a.srv.ServeHTTP(answer, req)
		return answer.Code
	}
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for i, from := range []string{"[2001:db8::1]:1", "[2001:db8::2]:1"} {
		waiting.Go(func() { ask(ctx, from, `{"wait":"60s"}`) })
		a.waiters("x", i+1)
	}
	for from, want := range map[string]int{"[2001:db8::3]:1": 429, "[2001:db8:0:1::1]:1": 409, "192.0.2.1:1": 409, "127.0.0.1:1": 409} {
		if got := ask(t.Context(), from, `{}`); got != want {
			t.Errorf("from %s: %d, want %d", from, got, want)
		}
	}
}

// A client with too many connections is served only what keeps its leases, and the connection is closed
// otherwise. A connection that is closed counts no more.
func TestQuotaOfConnections(t *testing.T) {
	t.Parallel()
	a := shared(t, server.Limits{}, server.Quota{Connections: 2})
	g := want[wire.Grant](a, 200, "POST", lockPath("x"), `{"ttl":"5m"}`, as("other")...)
	first, second, third := dial(t, a), dial(t, a), dial(t, a)
	for _, c := range []net.Conn{first, second} {
		if status, closed := ask(t, c, "GET", "/v1/locks/x", "greedy"); status != 200 || closed {
			t.Errorf("within the quota: %d, closed: %t", status, closed)
		}
	}
	if status, _ := ask(t, third, "PUT", "/v1/locks/x/leases/"+g.Lease, "greedy"); status != 410 {
		t.Errorf("a renewal: %d", status)
	}
	if status, closed := ask(t, third, "GET", "/v1/locks/x", "greedy"); status != 429 || !closed {
		t.Errorf("beyond the quota: %d, closed: %t", status, closed)
	}
	fourth := dial(t, a)
	leasetest.Eventually(t, "the closed connection is not counted", func() bool {
		status, _ := ask(t, fourth, "PUT", "/v1/locks/x/leases/"+g.Lease, "greedy")
		return status == 410 && a.srv.ConnectionsOf("greedy") == 3
	})
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	leasetest.Eventually(t, "another may be used", func() bool { return a.srv.ConnectionsOf("greedy") == 2 })
	if status, _ := ask(t, fourth, "GET", "/v1/locks/x", "greedy"); status != 200 {
		t.Errorf("within the quota again: %d", status)
	}
	if status, _ := ask(t, fourth, "GET", "/v1/locks/x", "other"); status != 200 || a.srv.ConnectionsOf("greedy") != 1 {
		t.Errorf("as another client: %d, %d", status, a.srv.ConnectionsOf("greedy"))
	}
}

// ask sends a request on a connection.
func ask(t *testing.T, c net.Conn, method, path, who string) (int, bool) {
	t.Helper()
	if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: %s\r\nContent-Length: 0\r\n\r\n", method, path, who); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Close
}

// An IPv6 host has 64 bits of addresses.
func TestNetwork(t *testing.T) {
	t.Parallel()
	for a, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "::ffff:192.0.2.1": "192.0.2.1", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "fe80::1%eth0": "fe80::",
	} {
		if got := server.Network(netip.MustParseAddr(a)); got.String() != want {
			t.Errorf("%s: %s, want %s", a, got, want)
		}
	}
}

// Clients that are gone are forgotten.
func TestClientsAreForgotten(t *testing.T) {
	t.Parallel()
	a := shared(t, server.Limits{}, server.Quota{})
	if n := a.srv.ClientsAfter(10_000); n > 2500 {
		t.Errorf("%d clients are remembered", n)
	}
}
