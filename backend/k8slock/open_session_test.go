package k8slock_test

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// apiServer keeps Leases in memory and reports nothing to watches.
type apiServer struct {
	mu      sync.Mutex
	create  func(keep func()) int // returns the status of a request to make a Lease; nil: it succeeds
	leases  map[string]map[string]any
	version int
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const collection = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, collection), "/")
	if r.URL.Query().Get("watch") != "" {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var in map[string]any
	_ = json.NewDecoder(r.Body).Decode(&in) // a GET has no body
	code, out := http.StatusOK, a.leases[name]
	switch {
	case r.Method == http.MethodPost:
		name = meta(in)["name"].(string)
		code, out = a.post(name, in)
	case name == "":
		out = map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)}, "items": slices.Collect(maps.Values(a.leases))}
	case out == nil:
		code, out = http.StatusNotFound, map[string]any{"reason": "NotFound"}
	case r.Method == http.MethodDelete:
		delete(a.leases, name)
	case r.Method == http.MethodPut:
		out = a.keep(name, in)
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(out)
}

func meta(lease map[string]any) map[string]any { return lease["metadata"].(map[string]any) }

func (a *apiServer) post(name string, in map[string]any) (int, map[string]any) {
	if a.leases[name] != nil {
		return http.StatusConflict, map[string]any{"reason": "AlreadyExists"}
	}
	if a.create != nil {
		if code := a.create(func() { a.keep(name, in) }); code >= http.StatusBadRequest {
			return code, map[string]any{"message": "not now"}
		}
	}
	return http.StatusCreated, a.keep(name, in)
}

// keep stores a Lease under a new version.
func (a *apiServer) keep(name string, in map[string]any) map[string]any {
	a.version++
	meta(in)["resourceVersion"], meta(in)["uid"] = strconv.Itoa(a.version), name
	a.leases[name] = in
	return in
}

// answer determines what becomes of requests to make a Lease, which may make it and fail.
func (a *apiServer) answer(create func(keep func()) int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.create = create
}

// forget deletes the Leases whose names contain the text.
func (a *apiServer) forget(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.leases, func(name string, _ map[string]any) bool { return strings.Contains(name, text) })
}

// count returns how many Leases there are.
func (a *apiServer) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.leases)
}

func status(code int) func(func()) int { return func(func()) int { return code } }

// madeAndFailed makes the Lease and answers that it failed.
func madeAndFailed(keep func()) int {
	keep()
	return http.StatusServiceUnavailable
}

func startAPI(t *testing.T) (*apiServer, *k8slock.Backend) {
	t.Helper()
	a := &apiServer{leases: make(map[string]map[string]any), version: 1}
	srv := httptest.NewServer(a)
	t.Cleanup(srv.Close)
	b, err := k8slock.New(srv.Client(), srv.URL, k8slock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return a, b
}

func openAs(t *testing.T, b *k8slock.Backend, id backend.SessionID) error {
	t.Helper()
	return b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: id, TTL: time.Minute})
}

// TestRefusedSessionsAreForgotten: nothing is remembered of sessions that could not be opened. The
// client tries a new ID each time, for as long as the API server refuses.
func TestRefusedSessionsAreForgotten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code    int
		certain bool // that no Lease was made
	}{"overloaded": {http.StatusTooManyRequests, true}, "forbidden": {http.StatusForbidden, true}, "unavailable": {http.StatusServiceUnavailable, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := startAPI(t)
			a.answer(status(c.code))
			for range 100 {
				err := openAs(t, b, backend.NewSessionID())
				if !errors.Is(err, backend.ErrUnavailable) || mayHold(err) == c.certain {
					t.Fatalf("OpenSession with the answer %d: %v", c.code, err)
				}
			}
			if n := b.Sessions(); n != 0 {
				t.Errorf("%d sessions are remembered", n)
			}
		})
	}
}

// TestSessionOfUnknownOutcome: a session whose creation failed with an unknown outcome can be
// opened after all, whether or not it exists.
func TestSessionOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, create := range map[string]func(func()) int{"made": madeAndFailed, "not made": status(http.StatusServiceUnavailable)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := startAPI(t)
			a.answer(create)
			id := backend.NewSessionID()
			if err := openAs(t, b, id); !mayHold(err) {
				t.Fatalf("OpenSession: %v", err)
			}
			a.answer(nil)
			if err := openAs(t, b, id); err != nil {
				t.Fatalf("OpenSession again: %v", err)
			}
			res, err := b.Renew(t.Context(), backend.RenewRequest{Session: id})
			if err != nil || res.SessionLost || b.Sessions() != 1 {
				t.Errorf("Renew: %+v, %v; %d sessions are remembered", res, err, b.Sessions())
			}
			if err := b.EndSession(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if n := a.count(); n != 0 {
				t.Errorf("%d Leases after EndSession", n)
			}
		})
	}
}

// TestGrantPastTheEnd: while the answer to a renewal is on its way, only the API server knows whether the
// session lives. A lease that it has is granted.
func TestGrantPastTheEnd(t *testing.T) {
	t.Parallel()
	a, b := startAPI(t)
	id := backend.NewSessionID()
	if err := openAs(t, b, id); err != nil {
		t.Fatal(err)
	}
	b.Overdue(id)
	leasetest.Take(t, b, leasetest.Ask("lives", id))
	b.Overdue(id)
	a.forget("holdfast-session")
	if g, err := b.Acquire(leasetest.Within(t), leasetest.Ask("has ended", id)); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("Acquire: %+v, %v; want a lost session", g, err)
	}
}
