package zklock

import "github.com/holdfast-io/holdfast/backend"

// Waiting returns how many changes of a session wait for the next transaction.
func (b *Backend) Waiting(id backend.SessionID) int {
	s, err := b.sessions.Get(id)
	if err != nil {
		return -1
	}
	s.batcher.mu.Lock()
	defer s.batcher.mu.Unlock()
	return len(s.batcher.waiting)
}

// Flying reports whether a transaction of a session is under way.
func (b *Backend) Flying(id backend.SessionID) bool {
	s, err := b.sessions.Get(id)
	if err != nil {
		return false
	}
	s.batcher.mu.Lock()
	defer s.batcher.mu.Unlock()
	return s.batcher.running
}

// Freeze holds back what a session writes, until the function that it returns is called.
func (b *Backend) Freeze(id backend.SessionID) func() {
	s, err := b.sessions.Get(id)
	if err != nil {
		return func() {}
	}
	s.batcher.mu.Lock()
	defer s.batcher.mu.Unlock()
	s.batcher.running = true
	return func() { go s.batcher.run() }
}

// Tell reports a lease of a session as lost, as if that had just been learned.
func (b *Backend) Tell(id backend.SessionID, lease backend.LeaseID, cause backend.Cause) {
	if s, err := b.sessions.Get(id); err == nil {
		s.tell(backend.Loss{Lease: lease, Cause: cause})
	}
}

// Known returns how many leases of a session are known, and how many of their entries.
func (b *Backend) Known(id backend.SessionID) (int, int) {
	s, err := b.sessions.Get(id)
	if err != nil {
		return -1, -1
	}
	known := s.leases.Count()
	s.leases.Lock()
	defer s.leases.Unlock()
	return known, len(s.entries)
}
