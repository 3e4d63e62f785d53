package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

func TestBodyLimit(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	fits := `{"note":"n"` + strings.Repeat(" ", 64<<10-12) + `}`
	if got := a.call("POST", lockPath("x"), fits); got.status != 200 {
		t.Errorf("%d bytes: status %d: %s", len(fits), got.status, got.body)
	}
	got := a.call("POST", lockPath("x"), fits+" ")
	if p := decode[wire.Problem](t, got); got.status != 413 || p.Type != wire.TypeTooLarge {
		t.Errorf("%d bytes: status %d: %s", len(fits)+1, got.status, got.body)
	}
	got = a.call("POST", lockPath("x"), "\x1f\x8b", "Content-Encoding", "gzip")
	if got.status != 415 {
		t.Errorf("compressed: status %d: %s", got.status, got.body)
	}
}

func TestTextLimits(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	n := func(n int) string { return strings.Repeat("n", n) }
	for body, status := range map[string]int{
		`{"note":"` + n(1024) + `"}`: 200, `{"note":"` + n(1025) + `"}`: 400, `{"owner":"` + n(256) + `"}`: 200, `{"owner":"` + n(257) + `"}`: 400,
	} {
		if got := a.call("POST", lockPath(fmt.Sprint("x", len(body))), body); got.status != status {
			t.Errorf("%.20s… of %d bytes: status %d, want %d", body, len(body), got.status, status)
		}
	}
	if got := a.call("DELETE", lockPath("x")+"?reason="+n(1025), ""); got.status != 400 {
		t.Errorf("reason: status %d", got.status)
	}
}

func TestHeaderLimit(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{})
	if got := a.call("GET", "/healthz", "", "X-Big", strings.Repeat("x", 15<<10)); got.status != 200 {
		t.Errorf("15 KiB of headers: status %d", got.status)
	}
	// The server may hang up while the client still writes.
	if got, err := a.do(t.Context(), "GET", "/healthz", "", "X-Big", strings.Repeat("x", 24<<10)); err == nil && got.status != 431 {
		t.Errorf("24 KiB of headers: status %d, want 431", got.status)
	}
}

func dial(t *testing.T, a *api) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(a.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// Slowloris: slow headers, slow bodies and silence are cut off in time.
func TestSlowClients(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	a := start(t, server.Config{Limits: server.Limits{
		ReadHeaderTimeout: 6 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 6 * time.Second,
	}})
	for what, c := range map[string]struct {
		send string
		want string // of the answer; empty: none
	}{
		"headers": {"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-", ""},
		"nothing": {"", ""},
		"body":    {"POST /v1/locks/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{", "408"},
		"idle":    {"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "200"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			begun := time.Now()
			conn := dial(t, a) // the server's time begins with it
			if _, err := io.WriteString(conn, c.send); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(conn)
			if err != nil && !strings.Contains(err.Error(), "reset") {
				t.Error(err)
			}
			if took := time.Since(begun); took < 5900*time.Millisecond || took > patience {
				t.Errorf("the connection was closed after %s", took)
			}
			if c.want != "" && !strings.HasPrefix(string(got), "HTTP/1.1 "+c.want) {
				t.Errorf("answer %.100q, want %s", got, c.want)
			}
		})
	}
}

// A client that does not read its stream is disconnected in time.
func TestSlowReading(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	// The time also bounds the answers to the calls below, on a machine of any load.
	a := start(t, server.Config{Limits: server.Limits{WriteTimeout: 10 * time.Second, Backlog: 1 << 20}})
	conn := dial(t, a)
	if _, err := io.WriteString(conn, "GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	leasetest.Eventually(t, "the stream is there", func() bool { return a.srv.Streams() == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	name, owner := strings.Repeat("<", 512), strings.Repeat("<", 256) // six bytes each in an event
	for a.srv.Streams() == 1 {
		got, err := a.do(ctx, "POST", lockPath(name), `{"owner":"`+owner+`"}`)
		if err != nil || got.status != 200 {
			t.Fatalf("%d %s %v", got.status, got.body, err)
		}
		a.release(name, decode[wire.Grant](t, got).Lease, 204)
	}
}

func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Limits: server.Limits{Connections: 3}})
	var open []net.Conn
	for range 3 { // each serves a request: idle ones would be closed for new ones
		c := dial(t, a)
		if _, err := io.WriteString(c, "GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%+v, %v", res, err)
		}
		open = append(open, c)
	}
	extra := dial(t, a)
	if b, err := io.ReadAll(extra); len(b) > 0 || err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the fourth connection got %q, %v", b, err)
	}
	open[0].Close()
	leasetest.Eventually(t, "a place is free again", func() bool {
		c := dial(t, a)
		_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
		b, _ := io.ReadAll(c)
		return strings.HasPrefix(string(b), "HTTP/1.1 200")
	})
}

func TestWaitersPerLock(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Limits: server.Limits{WaitersPerLock: 2}})
	g := a.take("x", `{}`)
	for range 2 {
		a.send("POST", lockPath("x"), `{"wait":"60s"}`)
	}
	a.waiters("x", 2)
	got := a.call("POST", lockPath("x"), `{"wait":"60s"}`)
	p := decode[wire.Problem](t, got)
	if got.status != 429 || p.Type != wire.TypeTooMany || got.header.Get("Retry-After") == "" || p.MayHold == nil || *p.MayHold {
		t.Errorf("status %d: %s", got.status, got.body)
	}
	if n := metric(a, `holdfast_quota_rejected_total{backend="memory",quota="waiters_per_lock"}`); n != 1 {
		t.Errorf("quota_rejected_total %v", n)
	}
	if got := a.call("POST", lockPath("x"), `{}`); got.status != 409 {
		t.Errorf("one that does not wait: status %d", got.status)
	}
	a.take("y", `{"wait":"1s"}`) // another lock
	a.release("x", g.Lease, 204)
	// One wait has ended: there is room in the queue, once the server has noticed that.
	third := a.send("POST", lockPath("x"), `{"wait":"60s"}`)
	leasetest.Eventually(t, "another waits in its place", func() bool {
		select {
		case <-third.done:
			if third.err != nil || third.answer.status != 429 {
				t.Fatalf("status %d, %v", third.answer.status, third.err)
			}
			third = a.send("POST", lockPath("x"), `{"wait":"60s"}`)
		default:
		}
		return len(a.inspect("x").Waiters) == 2
	})
	third.cancel()
}

// A kept place counts as one in the queue until its time has passed. A new request for its
// lease uses it.
func TestKeptPlacesPerLock(t *testing.T) {
	t.Parallel()
	virtual(t, inMemory, server.Config{Limits: server.Limits{WaitersPerLock: 2}}, func(t *testing.T, a *api) { //nolint:thelper // it is the test
		a.take("x", `{}`)
		ask := func(lease, keep string) int {
			t.Helper()
			return a.call("POST", lockPath("x"), `{"wait":"1ms","lease":"my-own-lease-`+lease+`"}`, wire.HeaderKeepPlace, keep).status
		}
		for _, c := range []struct {
			lease, keep string
			want        int
		}{{"0001", "14s", 409}, {"0001", "14s", 409}, {"0002", "14s", 409}, {"0003", "14s", 429}, {"0001", "14s", 409}} {
			if got := ask(c.lease, c.keep); got != c.want {
				t.Errorf("lease %s: status %d, want %d", c.lease, got, c.want)
			}
		}
		if got := a.call("POST", lockPath("x"), `{"wait":"1ms"}`); got.status != 429 {
			t.Errorf("a lease of the server's: status %d", got.status)
		}
		a.take("y", `{"wait":"1s"}`) // another lock
		leasetest.Eventually(t, "a place is free again", func() bool { return ask("0003", "0s") == 409 })
	})
}

// A poll has a longest wait, and the configured value is the one in the error.
func TestWaitLimit(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Limits: server.Limits{Wait: time.Second}})
	p := want[wire.Problem](a, 400, "POST", lockPath("x"), `{"wait":"1001ms"}`)
	if p.Field != "wait" || !strings.HasPrefix(p.Bound, "0s to 1s") {
		t.Errorf("problem %+v", p)
	}
	a.take("x", `{"wait":"1s"}`)
	if r := want[wire.Health](a, 200, "GET", "/readyz", ""); r.Capabilities.MaxWait.String() != "1s" {
		t.Errorf("readyz %+v", r.Capabilities)
	}
}

// An overload never makes a holder lose its lock: with every place of a waiter taken, and more requests all the
// time, renewals and releases succeed.
func TestReservedLane(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const slots, flood = 8, 64
	a := start(t, server.Config{Limits: server.Limits{Waiters: slots, Events: 1}})
	a.http.Transport = &http.Transport{MaxIdleConnsPerHost: 2 * flood}
	g := a.take("x", `{"ttl":"1m"}`)
	queue := make([]*later, slots)
	for i := range queue {
		queue[i] = a.send("POST", lockPath("x"), `{"wait":"60s"}`)
	}
	leasetest.Eventually(t, "all slots are taken", func() bool {
		info, err := a.b.Inspect(t.Context(), "x")
		return err == nil && len(info.Waiters) == len(queue)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var flooding sync.WaitGroup
	defer flooding.Wait()
	defer cancel()
	var refused atomic.Int64
	for i := range flood {
		flooding.Go(func() {
			for ctx.Err() == nil {
				got, err := a.do(ctx, "POST", lockPath(fmt.Sprint("flood", i)), `{"wait":"10s"}`)
				if err == nil && got.status == 503 && decodeQuietly(got).Type == wire.TypeOverloaded && got.header.Get("Retry-After") != "" {
					refused.Add(1)
				} else if err == nil && got.status != 200 {
					t.Errorf("%d %s", got.status, got.body)
				}
			}
		})
	}
	for renewals := 0; renewals < 20 || refused.Load() < 10*flood; renewals++ { // no renewal is rejected
		want[wire.RenewResult](a, 200, "PUT", lockPath("x")+"/leases/"+g.Lease, `{"ttl":"1m"}`)
		want[wire.RenewManyResponse](a, 200, "POST", "/v1/leases/renew", `{"leases":[{"name":"x","lease":"`+g.Lease+`","ttl":"1m"}]}`)
		want[wire.Health](a, 200, "GET", "/healthz", "")
	}
	cancel()
	if h := a.inspect("x").Holders; len(h) != 1 || h[0].Lease != g.Lease {
		t.Errorf("holders %+v", h)
	}
	a.release("x", g.Lease, 204)
}
