package memlock

import (
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Kept returns how much a store keeps: locks, leases, sessions and things that can expire.
func (s *Store) Kept() [4]int {
	s.enter()
	defer s.leave()
	leases := 0
	for _, l := range s.locks {
		leases += len(l.All())
	}
	return [4]int{len(s.locks), leases, len(s.sessions), s.due.Len()}
}

// Armed reports whether the timer of the store is set.
func (s *Store) Armed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timerAt != never
}

// Stall releases a lease and then keeps the store busy while f runs: a waiter that was
// granted the lock learns it only afterwards.
func (s *Store) Stall(name string, id backend.LeaseID, f func()) {
	s.enter()
	defer s.leave()
	lockstate.End(s.rules(), s.lock(name).Find(id), backend.EventReleased, backend.ErrLost, "")
	s.settle()
	f()
}
