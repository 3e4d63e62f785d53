package chaos

import "context"

// Stats are the counters of a Proxy.
type Stats struct {
	Accepted   int // connections from clients so far
	Open       int // connections that are open, half-open ones included
	DialErrors int // connections for which the server was unavailable
	Requests   Flow
	Replies    Flow
}

// Flow counts the bytes that go one way.
type Flow struct {
	Passed  int64 // sent on
	Dropped int64 // lost on purpose
	Kept    int64 // held or delayed, or about to be sent on
}

// flow returns the counters of one direction.
func (s *Stats) flow(i int) *Flow {
	if i == 0 {
		return &s.Requests
	}
	return &s.Replies
}

// Stats returns the counters.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Wait waits until cond is true of the counters, which it checks whenever they change. It
// returns ctx's cause when that ends first.
func (p *Proxy) Wait(ctx context.Context, cond func(Stats) bool) error {
	for {
		p.mu.Lock()
		now := p.stats
		if p.changed == nil {
			p.changed = make(chan struct{})
		}
		changed := p.changed
		p.mu.Unlock()
		if cond(now) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tell wakes the goroutines that wait for the counters.
func (p *Proxy) tell() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}
