package server_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

const (
	givenBack = `holdfast_untold_total{backend="memory",fate="given_back"}`
	left      = `holdfast_untold_total{backend="memory",fate="left"}`
	heldNow   = `holdfast_held{backend="memory",mode="exclusive"}`
)

// behind serves the same server through another handler.
func behind(t *testing.T, a *api, wrap func(http.ResponseWriter, *http.Request) http.ResponseWriter) *api {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.srv.Handler().ServeHTTP(wrap(w, r), r)
	}))
	t.Cleanup(s.Close)
	other := *a
	other.base, other.http = s.URL, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return &other
}

// lingering returns from sending an answer only after the client has hung up.
type lingering struct {
	http.ResponseWriter
	r    *http.Request
	hung chan<- struct{}
}

func (w *lingering) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *lingering) FlushError() error {
	err := http.NewResponseController(w.ResponseWriter).Flush()
	select {
	case <-w.r.Context().Done():
		close(w.hung)
	case <-time.After(patience):
	}
	return err
}

// A client that reads its answer and exits immediately, as curl does, holds the lock, even if
// the server learns that the client is gone before it learns that the answer was sent.
func TestToldAndGone(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"owner":"curl"}`, `{"owner":"curl","wait":"10s"}`} {
		a := start(t, server.Config{})
		hung := make(chan struct{})
		curl := behind(t, a, func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
			return &lingering{w, r, hung}
		})
		g := curl.take("order:1", body) // reads the answer, and closes the connection
		select {
		case <-hung:
		case <-time.After(patience):
			t.Fatal("the server did not see the client go")
		}
		if err := a.stop(); err != nil { // all background work is done then
			t.Fatal(err)
		}
		info, err := a.b.Inspect(t.Context(), "order:1")
		if err != nil || len(info.Holders) != 1 || string(info.Holders[0].Lease) != g.Lease {
			t.Errorf("%s: granted %+v, and then: %+v, %v", body, g, info.Holders, err)
		}
	}
}

// hookBackend calls back when a grant is about to be returned.
type hookBackend struct {
	backend.Backend
	granted func(context.Context)
}

func (b *hookBackend) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	g, err := b.Backend.Acquire(ctx, r)
	if err == nil {
		b.granted(ctx)
	}
	return g, err
}

// A client that hung up before anything was sent does not hold the lock.
func TestGoneBeforeItWasTold(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	ctx, cancel := context.WithCancel(t.Context())
	b := &hookBackend{Backend: memlock.New(), granted: func(inside context.Context) {
		cancel()
		<-inside.Done()
	}}
	a := serve(t, &faulty{Backend: b}, server.Config{Logger: log.logger()})
	if got, err := a.do(ctx, "POST", lockPath("x"), `{"ttl":"1h"}`); err == nil {
		t.Fatalf("answer %d %s", got.status, got.body)
	}
	leasetest.Eventually(t, "the lock is free", func() bool { return len(a.inspect("x").Holders) == 0 })
	leasetest.Eventually(t, "it is counted", func() bool { return metric(a, givenBack) == 1 && metric(a, left) == 0 && metric(a, heldNow) == 0 })
	if lines := log.lines("a grant was not sent to its client: the lease is released"); len(lines) != 1 || lines[0]["lock"] != "x" {
		t.Errorf("log: %v", log.String())
	}
}

// mute is a backend that may not answer a release.
type mute struct {
	backend.Backend
	silent atomic.Bool
}

func (m *mute) Release(ctx context.Context, r backend.ReleaseRequest) error {
	if m.silent.Load() {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return m.Backend.Release(ctx, r)
}

// A grant that was not sent is released also when the backend is unavailable for longer than
// Config.Timeout, or does not answer.
func TestGoneBeforeAnOutage(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		var outage func(bool)
		var hangUp context.CancelFunc
		open := func() *faulty {
			inner := &mute{}
			b := &faulty{Backend: inner}
			outage = b.away.Store
			if silent {
				outage = inner.silent.Store
			}
			inner.Backend = &hookBackend{Backend: memlock.New(), granted: func(inside context.Context) {
				outage(true)
				hangUp()
				<-inside.Done()
			}}
			return b
		}
		virtual(t, open, server.Config{}, func(t *testing.T, a *api) { //nolint:thelper // it is the test
			ctx, cancel := context.WithCancel(t.Context())
			hangUp = cancel
			if got, err := a.do(ctx, "POST", lockPath("x"), `{"ttl":"1h"}`); err == nil {
				t.Fatalf("answer %d %s", got.status, got.body)
			}
			leasetest.Eventually(t, "it is counted", func() bool { return metric(a, givenBack) == 1 })
			time.Sleep(time.Minute)
			outage(false)
			leasetest.Eventually(t, "the lock is free", func() bool { return len(a.inspect("x").Holders) == 0 })
		})
	}
}

// breaking fails while it writes an answer.
type breaking struct{ http.ResponseWriter }

func (breaking) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A lease whose grant may have been sent in part is the client's until its end.
func TestPerhapsTold(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	a := start(t, server.Config{Logger: log.logger()})
	cut := behind(t, a, func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter { return breaking{w} })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if got, err := cut.do(ctx, "POST", lockPath("x"), `{"ttl":"1h"}`); err == nil && len(got.body) > 0 {
		t.Fatalf("answer %d %s", got.status, got.body)
	}
	leasetest.Eventually(t, "it is counted", func() bool { return metric(a, left) == 1 && metric(a, givenBack) == 0 && metric(a, heldNow) == 1 })
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if info, err := a.b.Inspect(t.Context(), "x"); err != nil || len(info.Holders) != 1 {
		t.Errorf("holders %+v, %v", info.Holders, err)
	}
	if lines := log.lines("a grant may not have reached its client: the lease is left to expire"); len(lines) != 1 {
		t.Errorf("log: %v", log.String())
	}
}

// C14: a grant whose time ran out on the way is not returned. The server retries; under a lease
// ID of the client's own the client must take another.
func TestOverBeforeItWasTold(t *testing.T) {
	t.Parallel()
	for lease, status := range map[string]int{"": 200, `,"lease":"my-own-lease-0001"`: 410} {
		open := func() *faulty {
			var slow sync.Once
			return &faulty{Backend: &hookBackend{Backend: memlock.New(), granted: func(context.Context) { slow.Do(func() { time.Sleep(8100 * time.Millisecond) }) }}}
		}
		virtual(t, open, server.Config{}, func(t *testing.T, a *api) { //nolint:thelper // it is the test
			if got := a.call("POST", lockPath("x"), `{"ttl":"8s"`+lease+`}`); got.status != status {
				t.Errorf("lease %q: status %d: %s", lease, got.status, got.body)
			}
			if status != 200 {
				leasetest.Eventually(t, "the lock is free", func() bool { return len(a.inspect("x").Holders) == 0 })
			}
		})
	}
}

// A lease of unknown outcome is abandoned, and the log names its lock.
func TestUnknownIsLogged(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	a := start(t, server.Config{Logger: log.logger(), Timeout: 200 * time.Millisecond})
	a.b.away.Store(true)
	p := want[wire.Problem](a, 503, "POST", lockPath("order:1"), `{}`)
	if p.MayHold == nil || !*p.MayHold {
		t.Errorf("problem %+v", p)
	}
	lines := log.lines("the outcome of an acquire is unknown: its lease is abandoned")
	if len(lines) != 1 || lines[0]["lock"] != "order:1" || lines[0]["level"] != "WARN" {
		t.Errorf("log: %v", log.String())
	}
	leasetest.Eventually(t, "it is counted", func() bool { return metric(a, `holdfast_ambiguous_total{backend="memory",op="acquire"}`) == 1 })
	a.b.away.Store(false)
}

// A place is kept for waiters, not for holders.
func TestNoPlaceIsKeptForAHolder(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{PlaceTTL: 10 * time.Minute})
	a.call("POST", lockPath("x"), `{"wait":"10s","lease":"my-own-lease-0001"}`, wire.HeaderKeepPlace, "9m")
	leasetest.Eventually(t, "its session is ended", func() bool { return metric(a, `holdfast_sessions{backend="memory"}`) == 0 })
	if h := a.inspect("x").Holders; len(h) != 1 {
		t.Errorf("holders %+v", h)
	}
}

// A body that was announced and does not arrive takes no slot in a lane, and is cut off in time, also where no body
// is expected.
func TestAnnouncedBody(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Limits: server.Limits{Events: 1, ReadTimeout: 2 * time.Second}})
	for _, route := range server.Routes() {
		if route.Verb == server.Status {
			continue
		}
		for range 3 {
			conn := dial(t, a)
			if _, err := io.WriteString(conn, route.Method+" "+somePath(route.Pattern)+" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if route.Method == http.MethodGet && route.Verb == server.Read {
				defer func() {
					if b, err := io.ReadAll(conn); err != nil && !strings.Contains(err.Error(), "reset") || !strings.HasPrefix(string(b), "HTTP/1.1 408") {
						t.Errorf("answer %.100q, %v", b, err)
					}
				}()
			}
		}
	}
	g := a.take("x", `{"ttl":"1h"}`)
	for range 20 { // meanwhile all other requests are served
		want[wire.RenewResult](a, 200, "PUT", lockPath("x")+"/leases/"+g.Lease, `{"ttl":"1h"}`)
		want[wire.List](a, 200, "GET", "/v1/locks", "")
	}
	if got := a.call("DELETE", lockPath("x"), `{"reason":"in the wrong place"}`); got.status != 400 || decode[wire.Problem](t, got).Field != "body" {
		t.Errorf("status %d: %s", got.status, got.body)
	}
	if len(a.inspect("x").Holders) != 1 {
		t.Error("a refused break has broken the lock")
	}
}

// The cursor of a list is never the name of a lock that the caller may not see, and the pages
// show all that it may.
func TestCursorIsAuthorized(t *testing.T) {
	t.Parallel()
	a := start(t, server.Config{Authorize: func(_ string, act server.Action) error {
		if strings.HasPrefix(act.Name, "secret/") {
			return errors.New("not for you")
		}
		return nil
	}})
	names := []string{"a", "secret/1", "secret/2", "secret/3", "t", "u"}
	for _, n := range names {
		if _, err := a.b.Acquire(t.Context(), backend.AcquireRequest{Name: n, Lease: backend.NewLeaseID(), Timed: true, TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []string{"1", "2", "3", "100"} {
		var seen []string
		after := ""
		for range len(names) + 1 {
			page := want[wire.List](a, 200, "GET", "/v1/locks?limit="+limit+"&after="+after, "")
			for _, l := range page.Locks {
				seen = append(seen, l.Name)
			}
			if after = page.Next; after == "" {
				break
			}
			if strings.HasPrefix(after, "secret/") {
				t.Errorf("limit %s: next is %q", limit, after)
			}
		}
		if got := strings.Join(seen, " "); got != "a t u" {
			t.Errorf("limit %s: the pages show %q", limit, got)
		}
	}
}
