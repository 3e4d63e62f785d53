package server_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

// sessionless is a backend without sessions.
type sessionless struct{ backend.Backend }

func (s sessionless) Capabilities() backend.Capabilities {
	caps := s.Backend.Capabilities()
	caps.Sessions = false
	return caps
}

// direct sends a request to the handler of a server that is not on the network.
func direct(ctx context.Context, srv *server.Server, method, path, body string) answer {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, method, "http://127.0.0.1"+path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	srv.Handler().ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.Bytes()}
}

func newServer(t *testing.T, b backend.Backend, cfg server.Config) *server.Server {
	t.Helper()
	srv, err := server.New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return srv
}

// slowly is a real backend whose answers to releases, inspects and lists come late.
type slowly struct {
	backend.Backend
	late time.Duration
}

func (s *slowly) wait(ctx context.Context) error {
	select {
	case <-time.After(s.late):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *slowly) Release(ctx context.Context, r backend.ReleaseRequest) error {
	if err := s.Backend.Release(context.WithoutCancel(ctx), r); err != nil {
		return err
	}
	return s.wait(ctx)
}

func (s *slowly) List(ctx context.Context, r backend.ListRequest) (backend.ListPage, error) {
	p, err := s.Backend.List(ctx, r)
	if err != nil {
		return p, err
	}
	return p, s.wait(ctx)
}

func (s *slowly) Inspect(ctx context.Context, n string) (backend.LockInfo, error) {
	p, err := s.Backend.Inspect(ctx, n)
	if err != nil {
		return p, err
	}
	return p, s.wait(ctx)
}

// A release, an inspect and a list that the backend answers after half of Config.Timeout succeed: no client is told that
// its lease was lost.
func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &slowly{memlock.NewStore().Open(), 6 * time.Second}
		srv := newServer(t, b, server.Config{Timeout: 12 * time.Second})
		for _, c := range []struct {
			method, path, body string
			status             int
		}{
			{"POST", lockPath("x"), `{"lease":"my-own-lease-0001","ttl":"5m"}`, 200},
			{"GET", lockPath("x"), "", 200},
			{"GET", "/v1/locks", "", 200},
			{"DELETE", lockPath("x") + "/leases/my-own-lease-0001", "", 204},
		} {
			if got := direct(t.Context(), srv, c.method, c.path, c.body); got.status != c.status {
				t.Errorf("%s %s: %d %s", c.method, c.path, got.status, got.body)
			}
		}
		if err := errors.Join(srv.Close(t.Context()), b.Close()); err != nil {
			t.Error(err)
		}
	})
}

// C12: the outcome of a release is unknown when the server is closed. The client is told that the lease
// may be held.
func TestReleaseWhileTheServerCloses(t *testing.T) {
	t.Parallel()
	b := &faulty{Backend: memlock.NewStore().Open()}
	defer b.Close()
	srv := newServer(t, b, server.Config{Timeout: 2 * time.Second})
	if got := direct(t.Context(), srv, "POST", lockPath("x"), `{"lease":"my-own-lease-0001"}`); got.status != 200 {
		t.Fatal(got)
	}
	b.away.Store(true)
	released := make(chan answer, 1)
	go func() {
		released <- direct(t.Context(), srv, "DELETE", lockPath("x")+"/leases/my-own-lease-0001", "")
	}()
	leasetest.Eventually(t, "the backend is asked", func() bool { return b.freed.Load() > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := srv.Close(ctx); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, backend.ErrUnavailable) && err != nil {
		t.Errorf("close: %v", err)
	}
	got := <-released
	if p := decode[wire.Problem](t, got); p.MayHold == nil || !*p.MayHold {
		t.Errorf("the lease is held, and the client is told %d %s", got.status, got.body)
	}
}

// counting counts the calls.
type counting struct {
	backend.Backend
	calls atomic.Int64
}

func (c *counting) OpenSession(ctx context.Context, r backend.SessionRequest) error {
	c.calls.Add(1)
	return c.Backend.OpenSession(ctx, r)
}

func (c *counting) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	c.calls.Add(1)
	return c.Backend.Acquire(ctx, r)
}

// A request that was cancelled before it began sends nothing.
func TestCancelledBeforeItBegan(t *testing.T) {
	t.Parallel()
	b := &counting{Backend: memlock.NewStore().Open()}
	defer b.Close()
	srv := newServer(t, b, server.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, body := range []string{`{"lease":"my-own-lease-0001"}`, `{}`, `{"wait":"10s"}`, `{"wait":"10s","lease":"my-own-lease-0001"}`} {
		if got := direct(ctx, srv, "POST", lockPath("x"), body); got.status == 200 {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
	if err := srv.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if n := b.calls.Load(); n != 0 {
		t.Errorf("%d calls of the backend", n)
	}
}

// C13: a grant arrives while the server is closed, and its client has hung up: the lease is released.
func TestGrantWhileTheServerCloses(t *testing.T) {
	t.Parallel()
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		var srv *server.Server
		var closing sync.WaitGroup
		b := &hookBackend{Backend: memlock.NewStore().Open(), granted: func(context.Context) {
			closing.Go(func() { _ = srv.Close(t.Context()) })
			time.Sleep(time.Millisecond) // Close waits for this call
			cancel()
		}}
		srv = newServer(t, b, server.Config{})
		got := direct(ctx, srv, "POST", lockPath("x"), `{"ttl":"1h"}`)
		closing.Wait()
		info, err := b.Inspect(t.Context(), "x")
		if err != nil || len(info.Holders) > 0 && got.status != http.StatusOK {
			t.Fatalf("the lease belongs to no client, and is left to its TTL: %+v, %v", info, err)
		}
		_ = b.Close()
	}
}
