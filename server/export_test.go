package server

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"time"
)

// RouteInfo is a row of the table, for tests that visit every route.
type RouteInfo struct {
	Method, Pattern string
	Verb            Verb
}

// Routes returns the table.
func Routes() []RouteInfo { return tell(routes()) }

func tell(table []route) []RouteInfo {
	var out []RouteInfo
	for _, r := range table {
		out = append(out, RouteInfo{r.method, r.pattern, r.verb})
	}
	return out
}

// Streams returns the number of event streams.
func (s *Server) Streams() int {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	return len(s.hub.subs)
}

// Waiting returns the number of requests that wait for locks.
func (s *Server) Waiting() int {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	n := 0
	for _, of := range s.queue.waiting {
		n += of
	}
	return n
}

// Queued returns the number of renewals that wait for a call.
func (s *Server) Queued() int {
	n := 0
	for _, r := range []*renewer{s.renewer, s.claims} {
		r.mu.Lock()
		for _, leases := range r.queue {
			n += len(leases)
		}
		r.mu.Unlock()
	}
	return n
}

// CallsPerCPU is how many acquires for each processor run concurrently.
const CallsPerCPU = callsPerCPU

// Turns returns the calls that requests with these numbers of leases become: for each call, how
// many leases of which request.
func Turns(most int, requests ...int) [][]int {
	r := &renewer{most: most}
	for i, n := range requests {
		leases := make([]pending, n)
		for k := range leases {
			leases[k].ctx, leases[k].lease.TTL = context.Background(), time.Duration(i)
		}
		r.queue = append(r.queue, leases)
	}
	var calls [][]int
	for batch := r.takeLocked(); len(batch) > 0; batch = r.takeLocked() {
		call := make([]int, len(requests))
		for _, p := range batch {
			call[p.lease.TTL]++
		}
		calls = append(calls, call)
	}
	return calls
}

// Refusals returns a function that writes the line of a refusal.
func Refusals(log *slog.Logger) func() {
	a := newAuditor(log)
	return func() { a.refuse(&request{Request: new(http.Request)}, Action{}, ErrUnauthenticated) }
}

// SignIns are sign-ins without a server.
type SignIns struct{ all signIns }

// Open opens a sign-in and returns its cookie.
func (s *SignIns) Open(principal string, life time.Duration) string {
	return s.all.open(signIn{principal: principal, ends: time.Now().Add(life)})
}

// Has reports whether the cookie identifies a client.
func (s *SignIns) Has(cookie string) bool {
	_, ok := s.all.find(sha256.Sum256([]byte(cookie)))
	return ok
}

// Len returns the number of sign-ins.
func (s *SignIns) Len() int { return len(s.all.all) }
