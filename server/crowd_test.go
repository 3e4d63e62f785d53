package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
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

// crowd takes a lock for n shared leases, with texts that are as long in JSON as possible.
func crowd(t *testing.T, a *api, name string, n int) {
	t.Helper()
	for range n {
		if _, err := a.b.Backend.Acquire(t.Context(), backend.AcquireRequest{
			Name: name, Lease: backend.NewLeaseID(), Timed: true, TTL: 10 * time.Minute, Mode: backend.Shared,
			Owner: strings.Repeat("<", backend.MaxOwnerLen), Note: strings.Repeat("&", backend.MaxNoteLen),
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// A refusal because of thousands of holders names a few of them, alone and in a batch.
func TestRefusalIsSmall(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const holders, items = 2000, 256
	a := start(t, server.Config{})
	name := strings.Repeat(">", backend.MaxNameLen)
	crowd(t, a, name, holders)
	for _, body := range []string{`{}`, `{"wait":"1ms"}`, `{"wait":"1ms","lease":"my-own-lease-0000"}`} {
		got := a.call("POST", lockPath(name), body)
		p := decode[wire.Problem](t, got)
		if n := len(p.Holders); got.status != 409 || n < 3 || n > backend.MaxHeldHolders || p.HolderCount != holders || len(got.body) > 200<<10 {
			t.Errorf("%s: status %d, %d holders of %d, %d bytes", body, got.status, n, p.HolderCount, len(got.body))
		}
	}
	short := "amp"
	crowd(t, a, short, holders)
	req := make([]string, items)
	for i := range req {
		req[i] = fmt.Sprintf(`{"name":"amp","lease":"my-own-lease-%04d"}`, i)
	}
	got := a.call("POST", batchPath, `{"acquire":[`+strings.Join(req, ",")+`]}`)
	if most := items * 10 << 10; len(got.body) > most {
		t.Errorf("a batch of %d was answered with %d bytes; at most %d", items, len(got.body), most)
	}
	for which, res := range lines(t, got.body) {
		if res.Error == nil || res.Error.Status != 409 || len(res.Error.Holders) == 0 || res.Error.HolderCount != holders {
			t.Fatalf("%s: %+v", which, res.Error)
		}
	}
}

// A page of a list ends when it is big enough. All pages together are complete.
func TestListPageIsSmall(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	a := start(t, server.Config{})
	var names []string
	for i := range 12 {
		name := fmt.Sprintf("crowd/%02d", i)
		crowd(t, a, name, 150)
		names = append(names, name)
	}
	var got []string
	after, pages := "", 1
	for ; ; pages++ {
		page := want[wire.List](a, 200, "GET", "/v1/locks?prefix=crowd%2F&limit=1000&after="+after, "")
		for _, l := range page.Locks {
			got = append(got, l.Name)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if !slices.Equal(got, names) || pages < 2 {
		t.Errorf("%d pages list %q", pages, got)
	}
}

// hanging is a backend in which no call about a lease or a lock called "hangs" returns, except
// that Close ends it.
type hanging struct {
	backend.Backend
	tries, renewals, most atomic.Int64
	over                  chan struct{}
}

func (h *hanging) hang(ctx context.Context, n *atomic.Int64) {
	at := n.Add(1)
	for {
		most := h.most.Load()
		if at <= most || h.most.CompareAndSwap(most, at) {
			break
		}
	}
	select {
	case <-h.over:
	case <-ctx.Done():
	}
	n.Add(-1)
}

func (h *hanging) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	if strings.HasPrefix(r.Name, "hangs") && !r.Wait {
		h.hang(ctx, &h.tries)
	}
	return h.Backend.Acquire(ctx, r)
}

func (h *hanging) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	if slices.ContainsFunc(r.Leases, func(l backend.TimedRenewal) bool { return strings.HasPrefix(l.Name, "hangs") }) {
		h.hang(ctx, &h.renewals)
	}
	return h.Backend.Renew(ctx, r)
}

func (h *hanging) Release(ctx context.Context, r backend.ReleaseRequest) error {
	if strings.HasPrefix(r.Name, "hangs") {
		h.hang(ctx, &h.renewals)
	}
	return h.Backend.Release(ctx, r)
}

// Holders renew and release while other clients send as many renewals, releases and acquires as
// they can, of leases that never existed and locks that take long.
func TestHoldersAmongOthers(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const flood = 400
	h := &hanging{Backend: memlock.New(), over: make(chan struct{})}
	a := serve(t, &faulty{Backend: h}, server.Config{})
	a.http.Transport = &http.Transport{MaxIdleConnsPerHost: flood}
	g := a.take("x", `{"ttl":"10m"}`)
	b := a.take("y", `{"ttl":"10m"}`)
	var all []*later
	for i := range flood {
		lease := fmt.Sprintf("never-was-%08d", i)
		all = append(all,
			a.send("PUT", lockPath("hangs")+"/leases/"+lease, `{}`),
			a.send("DELETE", lockPath("hangs")+"/leases/"+lease, ""),
			a.send("POST", "/v1/leases/renew", `{"leases":[{"name":"hangs","lease":"`+lease+`"}]}`),
			a.send("POST", lockPath(fmt.Sprint("hangs", i)), `{}`))
	}
	most := int64(server.CallsPerCPU * runtime.GOMAXPROCS(0))
	leasetest.Eventually(t, "as many acquires as may be under way are", func() bool { return h.tries.Load() == min(most, flood) })
	leasetest.Eventually(t, "renewals and releases of others are", func() bool { return h.renewals.Load() > 8 })
	for range 20 {
		want[wire.RenewResult](a, 200, "PUT", lockPath("x")+"/leases/"+g.Lease, `{"ttl":"10m"}`)
		res := want[wire.RenewManyResponse](a, 200, "POST", "/v1/leases/renew", `{"leases":[{"name":"x","lease":"`+g.Lease+`","ttl":"10m"}]}`)
		if res.Leases[0].Error != nil {
			t.Fatalf("%+v", res.Leases[0].Error)
		}
	}
	a.release("y", b.Lease, 204)
	told(t, a.batch(`{"release":[{"name":"x","lease":"`+g.Lease+`"}]}`), map[string]int{"release 0": 200})
	if n := h.tries.Load(); n > most {
		t.Errorf("%d acquires are under way, at most %d", n, most)
	}
	close(h.over)
	for _, l := range all {
		l.get(t)
	}
}

// One call renews some leases of every waiting request, however many the others have.
func TestRenewalsTakeTurns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		most     int
		requests []int
		want     [][]int // for each call, how many leases of which request
	}{
		{1000, []int{1000, 1}, [][]int{{999, 1}, {1, 0}}},
		{100, []int{1000, 1, 10}, [][]int{{89, 1, 10}, {100, 0, 0}}},
		{100, []int{70, 70}, [][]int{{64, 36}, {6, 34}}},
	} {
		got := server.Turns(c.most, c.requests...)
		for i, w := range c.want {
			if i >= len(got) || !slices.Equal(got[i], w) {
				t.Errorf("requests of %v, %d in a call: the calls are %v", c.requests, c.most, got)
				break
			}
		}
	}
}

// greet sends a request on a connection of its own, and leaves the connection open.
func greet(t *testing.T, a *api) {
	t.Helper()
	c := dial(t, a)
	if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
}

// Connections that are silent, or send half a request, keep no holder out, whether it has a connection or
// comes with a new one.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Limits: server.Limits{Connections: 4}})
	g := a.take("x", `{"ttl":"1m"}`)
	kept, anew := a.http, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range 5 {
		for range 4 { // more than the limit
			greet(t, a)
			if _, err := io.WriteString(dial(t, a), "PUT /v1/locks/x HTTP/1.1\r\nHost: 127.0.0.1\r\nX-"); err != nil {
				t.Fatal(err)
			}
		}
		for _, a.http = range []*http.Client{kept, anew} {
			leasetest.Succeeds(t, func() error { // a client learns from its request that the connection was closed
				got, err := a.do(t.Context(), "PUT", lockPath("x")+"/leases/"+g.Lease, `{}`)
				if err == nil && got.status != http.StatusOK {
					t.Errorf("%d %s", got.status, got.body)
				}
				return err
			})
		}
	}
}

// A connection whose request is served for long, or is a holder's, is not closed for others.
func TestConnectionsInUseStay(t *testing.T) {
	t.Parallel()
	h := &hanging{Backend: memlock.New(), over: make(chan struct{})}
	a := serve(t, &faulty{Backend: h}, server.Config{Limits: server.Limits{Connections: 4}})
	g := a.take("hangs", `{"ttl":"10m","wait":"1s"}`)
	waiter := a.send("POST", lockPath("hangs"), `{"ttl":"10m","wait":"60s"}`)
	leasetest.Eventually(t, "it waits", func() bool { return a.srv.Waiting() == 1 })
	renewal := a.send("PUT", lockPath("hangs")+"/leases/"+g.Lease, `{}`)
	leasetest.Eventually(t, "it is renewed", func() bool { return h.renewals.Load() == 1 })
	for range 10 {
		greet(t, a)
	}
	close(h.over)
	if got := renewal.get(t); got.status != http.StatusOK {
		t.Errorf("renewal: %d %s", got.status, got.body)
	}
	a.release("hangs", g.Lease, 204)
	if got := waiter.get(t); got.status != http.StatusOK {
		t.Errorf("waiter: %d %s", got.status, got.body)
	}
}
