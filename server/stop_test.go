package server_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// A server that stops answers all waiters. Leases stay, and so do the places of clients that
// named their lease; the next server finds them.
func TestGracefulStop(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore()
	one, two := startOn(t, store, server.Config{}), startOn(t, store, server.Config{})
	g := one.take("x", `{"ttl":"1h"}`)
	const named = `{"owner":"named","lease":"my-own-lease-0001","wait":"60s"}`
	first := one.send("POST", lockPath("x"), named)
	one.waiters("x", 1)
	second := one.send("POST", lockPath("x"), `{"owner":"nameless","wait":"60s"}`)
	one.waiters("x", 2)
	if err := one.stop(); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*later{first, second} {
		got := l.get(t)
		p := decode[wire.Problem](t, got)
		if got.status != 503 || p.Type != wire.TypeStopping || got.header.Get("Retry-After") == "" {
			t.Errorf("status %d: %s", got.status, got.body)
		}
	}
	l := two.inspect("x")
	if len(l.Holders) != 1 || l.Holders[0].Lease != g.Lease {
		t.Errorf("the lease is gone: %+v", l)
	}
	if len(l.Waiters) != 1 || l.Waiters[0].Owner != "named" {
		t.Errorf("the queue is %+v", l.Waiters)
	}
	late := two.send("POST", lockPath("x"), `{"owner":"late","wait":"60s"}`)
	two.waiters("x", 2)
	again := two.send("POST", lockPath("x"), named)
	two.release("x", g.Lease, 204)
	got := again.get(t)
	if got.status != 200 {
		t.Fatalf("status %d: %s", got.status, got.body)
	}
	two.release("x", "my-own-lease-0001", 204)
	if got := late.get(t); got.status != 200 {
		t.Errorf("status %d: %s", got.status, got.body)
	}
}

// A place whose client does not return expires with its session.
func TestPlaceFalls(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore()
	one, two := startOn(t, store, server.Config{PlaceTTL: time.Second}), startOn(t, store, server.Config{})
	g := one.take("x", `{"ttl":"1h"}`)
	gone := one.send("POST", lockPath("x"), `{"lease":"my-own-lease-0001","wait":"60s"}`)
	one.waiters("x", 1)
	if err := one.stop(); err != nil {
		t.Fatal(err)
	}
	gone.get(t)
	two.waiters("x", 0)
	two.release("x", g.Lease, 204)
}

func TestStopping(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := a.srv.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.srv.Close(ctx); err != nil {
		t.Errorf("closing again: %v", err)
	}
	for path, status := range map[string]int{"/healthz": 200, "/readyz": 503, "/v1/locks": 503, "/v1/events": 503, "/metrics": 200} {
		if got := a.call("GET", path, ""); got.status != status {
			t.Errorf("GET %s of a closed server: status %d, want %d", path, got.status, status)
		}
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	r := want[wire.Health](a, 200, "GET", "/readyz", "")
	if r.Status != "ready" || r.Backend != "memory" || r.Capabilities == nil || !r.Capabilities.FIFO || r.Capabilities.MinTTL.String() != "1s" {
		t.Errorf("readyz %+v", r)
	}
	if metric(a, "holdfast_ready") != 1 {
		t.Error("holdfast_ready is not 1")
	}
	a.b.away.Store(true)
	leasetest.Eventually(t, "a scrape asks the backend", func() bool { return metric(a, "holdfast_ready") == 0 })
	leasetest.Eventually(t, "readyz reports that the backend is unavailable", func() bool { return a.call("GET", "/readyz", "").status == 503 })
	want[wire.Health](a, 200, "GET", "/healthz", "")
	a.b.away.Store(false)
	leasetest.Eventually(t, "readyz tells that the backend is back", func() bool { return a.call("GET", "/readyz", "").status == 200 })
}

// No server is opened to the network by accident.
func TestListener(t *testing.T) {
	t.Parallel()
	b := memlock.New()
	defer b.Close()
	srv, err := server.New(b, server.Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = srv.Serve(t.Context(), pretend{addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7420}})
	if err == nil || !strings.Contains(err.Error(), "Anonymous") {
		t.Errorf("Serve on 192.0.2.1: %v", err)
	}
}

// pretend is a listener that reports another address.
type pretend struct{ addr net.Addr }

func (p pretend) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (p pretend) Close() error              { return nil }
func (p pretend) Addr() net.Addr            { return p.addr }

// Metrics count what happened, and all of them exist from the start.
func TestMetrics(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	if n := metric(a, `holdfast_acquire_total{backend="memory",mode="exclusive",result="acquired"}`); n != 0 {
		t.Errorf("acquire_total is %v before the first", n)
	}
	g := a.take("x", `{"ttl":"10s"}`)
	a.take("x", `{"ttl":"10s","lease":"`+g.Lease+`"}`) // the same request again
	want[wire.Problem](a, 409, "POST", lockPath("x"), `{}`)
	want[wire.RenewResult](a, 200, "PUT", lockPath("x")+"/leases/"+g.Lease, `{"ttl":"10s"}`)
	w := a.send("POST", lockPath("x"), `{"wait":"60s"}`)
	a.waiters("x", 1)
	if n := metric(a, `holdfast_oldest_waiter_seconds{backend="memory"}`); n <= 0 {
		t.Errorf("oldest waiter %v", n)
	}
	a.release("x", g.Lease, 204)
	h := decode[wire.Grant](t, w.get(t))
	want[wire.Break](a, 200, "DELETE", lockPath("x"), "")
	want[wire.Problem](a, 410, "PUT", lockPath("x")+"/leases/"+h.Lease, `{"ttl":"10s"}`)
	a.take("short", `{"ttl":"1s","shared":true}`)
	leasetest.Eventually(t, "what ended is not held", func() bool { return metric(a, `holdfast_held{backend="memory",mode="shared"}`) == 0 })
	for series, n := range map[string]float64{
		`holdfast_acquire_total{backend="memory",mode="exclusive",result="acquired"}`:   3,
		`holdfast_acquire_total{backend="memory",mode="exclusive",result="held"}`:       1,
		`holdfast_held{backend="memory",mode="exclusive"}`:                              0,
		`holdfast_renew_total{backend="memory",result="ok"}`:                            1,
		`holdfast_renew_total{backend="memory",result="lost"}`:                          1,
		`holdfast_renew_margin_seconds_count{backend="memory"}`:                         1,
		`holdfast_lost_total{backend="memory",cause="gone"}`:                            1,
		`holdfast_break_total{backend="memory"}`:                                        1,
		`holdfast_handoff_seconds_count{backend="memory"}`:                              1,
		`holdfast_queue_depth{backend="memory"}`:                                        0,
		`holdfast_oldest_waiter_seconds{backend="memory"}`:                              0,
		`holdfast_hold_seconds_count{backend="memory",mode="exclusive"}`:                2,
		`holdfast_backend_op_seconds_count{backend="memory",op="break"}`:                1,
		`holdfast_backend_errors_total{backend="memory",kind="unavailable",op="renew"}`: 0,
	} {
		// Hooks count it a moment later.
		leasetest.Succeeds(t, func() error {
			own := strings.HasPrefix(series, "holdfast_renew_") // the session of those who wait is renewed too
			if is := metric(a, series); is < n || is > n && !own {
				return fmt.Errorf("%s is %v, want %v", series, is, n)
			}
			return nil
		})
	}
	if body := a.call("GET", "/metrics", "").body; strings.Contains(string(body), "short") {
		t.Error("a lock's name is in the metrics")
	}
}

// Concurrent renewals share few calls, and each gets its own answer.
func TestRenewalsTravelTogether(t *testing.T) {
	t.Parallel()
	b := &slowRenewals{Backend: memlock.New(), gate: make(chan struct{})}
	a := serve(t, &faulty{Backend: b}, server.Config{})
	const n = 40
	grants := make([]wire.Grant, n)
	for i := range grants {
		grants[i] = a.take("x"+string(rune('A'+i)), `{}`)
	}
	sent := make([]*later, n)
	for i, g := range grants {
		sent[i] = a.send("PUT", lockPath(g.Name)+"/leases/"+g.Lease, `{"ttl":"1m"}`)
	}
	leasetest.Eventually(t, "the renewals wait for the backend", func() bool { return a.srv.Queued()+b.inside() == n })
	close(b.gate)
	for i, l := range sent {
		got := l.get(t)
		if got.status != 200 || decode[wire.RenewResult](t, got).Token != grants[i].Token {
			t.Errorf("renewal %d: status %d: %s", i, got.status, got.body)
		}
	}
	if calls := b.calls.Load(); calls > 10 {
		t.Errorf("%d renewals took %d calls of the backend", n, calls)
	}
}

var _ backend.Backend = (*slowRenewals)(nil)

// With a delay the server serves on after it was told to stop, and is not ready. A balancer that asks
// /readyz loses no request. A listener that fails ends the delay.
func TestDrainDelay(t *testing.T) {
	t.Parallel()
	b := memlock.New()
	defer b.Close()
	srv, err := server.New(b, server.Config{DrainDelay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, ln) }()
	a := &api{t: t, base: "http://" + ln.Addr().String(), srv: srv, http: &http.Client{Transport: &http.Transport{}}}
	defer a.http.CloseIdleConnections()
	if got := a.call("GET", "/readyz", ""); got.status != 200 {
		t.Errorf("readyz is %d before the stop", got.status)
	}
	a.take("x", `{"ttl":"1m"}`)
	w := a.send("POST", lockPath("x"), `{"wait":"60s"}`)
	a.waiters("x", 1)
	stop()
	leasetest.Eventually(t, "it is not ready", func() bool { return a.call("GET", "/readyz", "").status == 503 })
	a.take("y", `{"ttl":"1m"}`)
	a.waiters("x", 1)
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve: %v", err)
	}
	if got := w.get(t); got.status != 503 {
		t.Errorf("the waiter got %d", got.status)
	}
}

// The delay ends.
func TestDrainDelayEnds(t *testing.T) {
	t.Parallel()
	const delay = 500 * time.Millisecond
	a := start(t, server.Config{DrainDelay: delay})
	begun := time.Now()
	if err := a.stop(); err != nil {
		t.Error(err)
	}
	if after := time.Since(begun); after < delay {
		t.Errorf("it served for %v more, want %v", after, delay)
	}
}

// The listener closes when all waiters have been answered.
func TestWaitersAreAnsweredFirst(t *testing.T) {
	t.Parallel()
	const waiters = 100
	b := memlock.New()
	defer b.Close()
	srv, err := server.New(b, server.Config{DrainTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan int, waiters) // how many waited when the listener was closed
	ln := closing{tcp, func() { left <- srv.Waiting() }}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, ln) }()
	a := &api{t: t, base: "http://" + tcp.Addr().String(), srv: srv, http: &http.Client{Transport: &http.Transport{}}}
	defer a.http.CloseIdleConnections()
	a.take("x", `{"ttl":"1h"}`)
	var sent []*later
	for range waiters {
		sent = append(sent, a.send("POST", lockPath("x"), `{"wait":"60s"}`))
	}
	a.waiters("x", waiters)
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if n := <-left; n != 0 {
		t.Errorf("the listener was closed while %d requests waited", n)
	}
	for _, l := range sent {
		if got := l.get(t); got.status != 503 || decode[wire.Problem](t, got).Type != wire.TypeStopping {
			t.Errorf("a waiter got %d: %s", got.status, got.body)
		}
	}
}

// closing is a listener that reports when it is closed.
type closing struct {
	net.Listener
	closed func()
}

func (c closing) Close() error {
	c.closed()
	return c.Listener.Close()
}
