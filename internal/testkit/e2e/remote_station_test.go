package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/remoteprobe"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/wire"
	"github.com/holdfast-io/holdfast/server"
)

const batchPath = "/v1/leases/batch"

// station is a server that blocks requests for the locks "gate/…" until it is opened, and
// records every request for the other locks.
type station struct {
	t      *testing.T
	store  *memlock.Store
	direct backend.Backend
	b      *remotelock.Backend
	probe  remoteprobe.Probe
	// batch serves a request for many; nil: the server serves it.
	batch func(w http.ResponseWriter, r *http.Request, next http.Handler)

	mu      sync.Mutex
	gate    chan struct{}       // closed: open
	gates   int                 // locks of that name so far
	inside  int                 // requests that wait for the gate to be opened
	singles []string            // "POST name", without the locks of the gate
	batches []wire.BatchRequest // in the order of arrival
	arrived []time.Time         // the times of the batches
}

func newStation(t *testing.T) *station {
	t.Helper()
	s := &station{t: t, store: memlock.NewStore(), gate: make(chan struct{})}
	s.direct = s.store.Open()
	srv, err := server.New(s.direct, server.Config{Limits: limits()})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(s.watched(srv))
	front.Config.Protocols = new(http.Protocols)
	front.Config.Protocols.SetHTTP1(true)
	front.Config.Protocols.SetUnencryptedHTTP2(true)
	front.Start()
	if s.b, err = remotelock.Open(remoteprobe.With(t.Context(), &s.probe), "holdfast://"+front.Listener.Addr().String(), remotelock.Config{}); err != nil {
		t.Fatal(err)
	}
	s.probe.SetLate(time.Hour) // only an answer ends a request
	t.Cleanup(func() {
		if err := errors.Join(s.b.Close(), srv.Close(context.WithoutCancel(t.Context()))); err != nil {
			t.Error(err)
		}
		front.Close()
		s.direct.Close()
	})
	return s
}

func (s *station) watched(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/v1/locks/"), "/")
		switch {
		case r.URL.Path == batchPath:
			body, err := io.ReadAll(r.Body)
			var req wire.BatchRequest
			if err = errors.Join(err, json.Unmarshal(body, &req)); err != nil {
				s.t.Error(err)
			}
			s.mu.Lock()
			s.batches, s.arrived = append(s.batches, req), append(s.arrived, time.Now())
			s.mu.Unlock()
			r.Body = io.NopCloser(bytes.NewReader(body))
			if s.batch != nil {
				s.batch(w, r, next)
				return
			}
		case strings.HasPrefix(name, "gate"):
			s.mu.Lock()
			gate := s.gate
			s.inside++
			s.mu.Unlock()
			select {
			case <-gate:
			case <-r.Context().Done():
			}
			s.mu.Lock()
			s.inside--
			s.mu.Unlock()
		case strings.HasPrefix(r.URL.Path, "/v1/locks/"):
			s.mu.Lock()
			s.singles = append(s.singles, r.Method+" "+name)
			s.mu.Unlock()
		}
		next.ServeHTTP(w, r)
	})
}

// openRemote lets the requests pass that now wait at the gate.
func (s *station) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.gate)
	s.gate = make(chan struct{})
}

// through requests a lock of the gate.
func (s *station) through() chan error {
	s.mu.Lock()
	s.gates++
	name := fmt.Sprint("gate/", s.gates)
	s.mu.Unlock()
	return s.async(func(ctx context.Context) error {
		_, err := s.b.Acquire(ctx, timedRequest(name))
		return err
	})
}

// waiting returns how many requests wait at the gate.
func (s *station) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inside
}

// busy brings as many requests in progress as there may be, so that the next operations share
// one.
func (s *station) busy() {
	s.t.Helper()
	leasetest.Eventually(s.t, "nothing is under way", func() bool { return s.probe.Requests() == 0 })
	for range s.probe.MaxRequests {
		s.through()
	}
	leasetest.Eventually(s.t, "all requests are under way", func() bool { return s.waiting() == s.probe.MaxRequests })
}

func (s *station) queued(n int) {
	s.t.Helper()
	leasetest.Eventually(s.t, fmt.Sprintf("%d wait to travel", n), func() bool { return s.probe.Queued() == n })
}

func (s *station) async(f func(context.Context) error) chan error {
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 3*remotePatience)
	ended := make(chan struct{})
	go func() { defer close(ended); defer cancel(); done <- f(ctx) }()
	s.t.Cleanup(func() { cancel(); <-ended })
	return done
}

func (s *station) seen() ([]string, []wire.BatchRequest, []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.singles, s.batches, s.arrived
}

func timedRequest(name string) backend.AcquireRequest {
	return backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute, Owner: "o"}
}

// acquireMany acquires locks with the names "x0", "x1", and so on.
func (s *station) acquireMany(n int, change func(int, *backend.AcquireRequest)) ([]backend.AcquireRequest, []backend.Grant, []chan error) {
	reqs, grants, done := make([]backend.AcquireRequest, n), make([]backend.Grant, n), make([]chan error, n)
	for i := range n {
		reqs[i] = timedRequest(fmt.Sprint("x", i))
		if change != nil {
			change(i, &reqs[i])
		}
		done[i] = s.async(func(ctx context.Context) error {
			var err error
			grants[i], err = s.b.Acquire(ctx, reqs[i])
			return err
		})
	}
	return reqs, grants, done
}

func (s *station) holders(name string) []backend.Holder {
	s.t.Helper()
	info, err := s.direct.Inspect(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	return info.Holders
}
