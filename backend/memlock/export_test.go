package memlock

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
