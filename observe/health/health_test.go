package health_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/observe/health"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func checker(t *testing.T, b backend.Backend, cfg health.Config) *health.Checker {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute // for a busy machine
	}
	c, err := holdfast.New(b, holdfast.Config{Timeout: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(c.Close(context.WithoutCancel(t.Context())), b.Close()) })
	check, err := health.New(c, b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return check
}

// get calls the checker over HTTP.
func get(t *testing.T, c http.Handler) (int, map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	var body map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatalf("%d %q: %v", w.Code, w.Body, err)
	}
	return w.Code, body
}

// store is a backend that knows about its servers.
type store struct {
	backend.Backend
	away    []string
	found   []backend.Finding
	err     error
	entered chan struct{} // receives when a lock is requested, if it is not nil
	wait    chan struct{} // closed when the lock may be granted, if it is not nil
	asked   atomic.Int32
}

func (s *store) Away(context.Context) ([]string, error)             { return s.away, s.err }
func (s *store) Examine(context.Context) ([]backend.Finding, error) { return s.found, s.err }

func (s *store) Acquire(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
	s.asked.Add(1)
	if s.entered != nil {
		s.entered <- struct{}{}
		<-s.wait
	}
	return s.Backend.Acquire(ctx, r)
}

func TestFound(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		store *store
		slow  time.Duration
		want  []string
	}{
		"nothing":        {&store{}, time.Hour, nil},
		"away":           {&store{away: []string{"a is away"}}, time.Hour, []string{"a is away"}},
		"a setting":      {&store{found: backend.Findings(false, "fsync is off")}, time.Hour, []string{"fsync is off"}},
		"a usual one":    {&store{found: backend.Findings(true, "it is alone")}, time.Hour, nil},
		"it cannot look": {&store{err: backend.ErrClosed}, time.Hour, []string{"the unavailable servers could not be determined", "the settings of the store could not be examined"}},
		"slow":           {&store{}, 1, []string{"it is slow"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tc.store
			s.Backend = memlock.New()
			r := checker(t, s, health.Config{Slow: tc.slow, Samples: 3}).Check(t.Context())
			want := health.Healthy
			if len(tc.want) > 0 {
				want = health.Degraded
			}
			if r.Status != want || r.Err != nil || r.Took <= 0 || r.Backend != "memory" || len(r.Found) != len(tc.want) || s.asked.Load() != 3 {
				t.Fatalf("%+v, asked %d times", r, s.asked.Load())
			}
			if notes := len(s.found) > 0 && s.found[0].Usual; notes != (len(r.Notes) == 1) {
				t.Errorf("notes: %q", r.Notes)
			}
			for i, prefix := range tc.want {
				if !strings.HasPrefix(r.Found[i], prefix) {
					t.Errorf("found %q, want %q", r.Found[i], prefix)
				}
			}
		})
	}
}

// exclusive is a backend without shared locks.
type exclusive struct{ backend.Backend }

func (e exclusive) Capabilities() backend.Capabilities {
	c := e.Backend.Capabilities()
	c.Shared = false
	return c
}

// Checks of a fleet do not block each other. An exclusive holder of their lock is a mistake, and
// does not mean that no lock can be acquired.
func TestTogether(t *testing.T) {
	t.Parallel()
	data := memlock.NewStore()
	var wg sync.WaitGroup
	for i := range 20 {
		var b backend.Backend = data.Open()
		if i%4 == 0 {
			b = exclusive{b}
		}
		c := checker(t, b, health.Config{Slow: time.Hour, Samples: 20})
		wg.Go(func() {
			// A check that cannot share waits for those that do, and they report it.
			if r := c.Check(t.Context()); r.Status == health.Unhealthy || i%4 == 0 && r.Status != health.Healthy {
				t.Errorf("%+v", r)
			}
		})
	}
	wg.Wait()
	b := data.Open()
	c, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Acquire(t.Context(), health.Lock); err != nil {
		t.Fatal(err)
	}
	if r := checker(t, data.Open(), health.Config{}).Check(t.Context()); r.Status != health.Degraded || len(r.Found) != 1 {
		t.Errorf("%+v", r)
	}
	if err := errors.Join(c.Close(t.Context()), b.Close()); err != nil {
		t.Error(err)
	}
}

// Requests that arrive together share one check, and a caller that hangs up does not end it.
func TestShared(t *testing.T) {
	t.Parallel()
	s := &store{Backend: memlock.New(), entered: make(chan struct{}), wait: make(chan struct{})}
	c := checker(t, s, health.Config{Slow: time.Hour, Fresh: time.Hour})
	ctx, hangUp := context.WithCancel(t.Context())
	var first sync.WaitGroup
	first.Go(func() {
		c.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
	})
	<-s.entered
	hangUp()
	first.Wait()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if code, body := get(t, c); code != http.StatusOK || body["status"] != "healthy" {
				t.Errorf("%d %v", code, body)
			}
		})
	}
	close(s.wait)
	wg.Wait()
	if _, body := get(t, c); body["found"] == nil || s.asked.Load() != 1 {
		t.Errorf("%v, asked %d times", body, s.asked.Load())
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil))
	if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") == "" {
		t.Errorf("POST: %d", w.Code)
	}
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	b := memlock.New()
	c, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(c.Close(context.WithoutCancel(t.Context())), b.Close()) })
	for _, cfg := range []health.Config{{Timeout: -1}, {Slow: -1}, {Fresh: -1}, {Samples: -1}} {
		if _, err := health.New(c, b, cfg); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// refusing is a store that refuses for want of a right, and says which.
type refusing struct{ backend.Backend }

func (refusing) Acquire(context.Context, backend.AcquireRequest) (backend.Grant, error) {
	no := &backend.RefusedError{Backend: "memory", Reason: "a right is missing", Remedy: "grant it"}
	return backend.Grant{}, &backend.UnavailableError{Backend: "memory", Op: "acquire", Err: no}
}

func (refusing) Examine(context.Context) ([]backend.Finding, error) {
	return backend.Findings(false, "the right to write"), nil
}

// A store that refuses is examined all the same: only that names each right that is missing.
func TestRefused(t *testing.T) {
	t.Parallel()
	r := checker(t, refusing{memlock.New()}, health.Config{}).Check(t.Context())
	if r.Status != health.Unhealthy || !errors.Is(r.Err, holdfast.ErrRefused) || len(r.Found) != 1 || r.Found[0] != "the right to write" {
		t.Errorf("%+v", r)
	}
}
