package runner

import (
	"context"
	"sync"

	"github.com/holdfast-io/holdfast/backend"
)

// sessionTracker is a backend that remembers under which session a lease was granted. A call past the
// client needs that.
type sessionTracker struct {
	backend.Backend
	mu       sync.Mutex
	sessions map[backend.LeaseID]backend.SessionID
}

func newSessionTracker(b backend.Backend) *sessionTracker {
	return &sessionTracker{Backend: b, sessions: make(map[backend.LeaseID]backend.SessionID)}
}

// Acquire remembers the session.
func (s *sessionTracker) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	g, err := s.Backend.Acquire(ctx, req)
	if err == nil {
		s.mu.Lock()
		s.sessions[req.Lease] = req.Session
		s.mu.Unlock()
	}
	return g, err
}

// forget returns the session of a lease, and forgets it.
func (s *sessionTracker) forget(id backend.LeaseID) backend.SessionID {
	s.mu.Lock()
	defer s.mu.Unlock()
	session := s.sessions[id]
	delete(s.sessions, id)
	return session
}
