package chaos

import "time"

// Lateness draws n delays, as n pieces would.
func (p *Proxy) Lateness(dir Direction, n int) []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var late []time.Duration
	dir.each(func(i int) {
		for range n {
			late = append(late, p.lateness(p.faults[i]))
		}
	})
	return late
}
