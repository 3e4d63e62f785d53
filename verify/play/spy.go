package play

import (
	"context"
	"sync"

	"github.com/holdfast-io/holdfast/backend"
)

// spy is a backend that remembers under which session a lease was granted. A call past the
// client needs that.
type spy struct {
	backend.Backend
	mu       sync.Mutex
	sessions map[backend.LeaseID]backend.SessionID
}

func newSpy(b backend.Backend) *spy {
	return &spy{Backend: b, sessions: make(map[backend.LeaseID]backend.SessionID)}
}

// Acquire remembers the session.
func (s *spy) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	g, err := s.Backend.Acquire(ctx, req)
	if err == nil {
		s.mu.Lock()
		s.sessions[req.Lease] = req.Session
		s.mu.Unlock()
	}
	return g, err
}

// forget returns the session of a lease, and forgets it.
func (s *spy) forget(id backend.LeaseID) backend.SessionID {
	s.mu.Lock()
	defer s.mu.Unlock()
	session := s.sessions[id]
	delete(s.sessions, id)
	return session
}
