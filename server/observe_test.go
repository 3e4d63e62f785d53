package server_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/server"
)

// Observe learns of each request how it was served.
func TestObserve(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	got := make(map[string]server.Served)
	a := start(t, server.Config{Observe: func(r *http.Request, s server.Served) {
		mu.Lock()
		defer mu.Unlock()
		got[r.Method+" "+r.URL.Path] = s
	}})
	began := time.Now()
	a.take("n", `{"ttl":"1m"}`)
	a.call("GET", "/nothing", "", "X-Request-Id", "mine")
	for request, want := range map[string]server.Served{
		"POST /v1/locks/n": {Route: "/v1/locks/{name}", Code: 200},
		"GET /nothing":     {Code: 404, ID: "mine"},
	} {
		leasetest.Eventually(t, request, func() bool { mu.Lock(); defer mu.Unlock(); return got[request].ID != "" })
		mu.Lock()
		s := got[request]
		mu.Unlock()
		if s.Route != want.Route || s.Code != want.Code || want.ID != "" && s.ID != want.ID || s.Arrived.Before(began) {
			t.Errorf("%s: %+v, want %+v", request, s, want)
		}
	}
}

// Config.Observe, set or not, allocates nothing in a request.
func TestCostOfObserve(t *testing.T) { //nolint:paralleltest // it counts the allocations of the process
	const requests = 100 // of a run: with the race detector a sync.Pool forgets by chance, so that one request may cost more than the next
	cost := func(observe func(*http.Request, server.Served)) float64 {
		b := memlock.NewStore().Open()
		s, err := server.New(b, server.Config{Observe: observe})
		if err != nil {
			t.Fatal(err)
		}
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1/healthz", http.NoBody)
		n := testing.AllocsPerRun(20, func() {
			for range requests {
				s.ServeHTTP(httptest.NewRecorder(), req)
			}
		})
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		return n
	}
	if without, with := cost(nil), cost(func(*http.Request, server.Served) {}); with-without > requests/2 {
		t.Errorf("%d requests allocate %g times, and %g times with Observe", requests, without, with)
	}
}
