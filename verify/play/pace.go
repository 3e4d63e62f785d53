package play

import (
	"context"
	"sync"
	"time"
)

// pacer bounds how fast a worker requests locks. On a machine that is short of processors it
// slows down: the behaviour of work that waits for a processor, a renewal above all, shows
// little about a lock.
type pacer struct {
	mu    sync.Mutex
	most  float64 // per second
	rate  float64
	next  time.Time
	slow  time.Duration // the longest time of a release since the last adjustment
	bound time.Duration // the longest slow that is acceptable
}

// The bounds of the pace, and how fast it changes.
const (
	leastRate  = 5.0
	firstShare = 0.125
	slower     = 0.7
	faster     = 1.08
)

// newPacer returns a pacer for leases of a TTL. Releases that take a large part of the TTL slow
// it down.
func newPacer(most int, ttl time.Duration) *pacer {
	return &pacer{most: float64(most), rate: max(leastRate, firstShare*float64(most)), bound: ttl / 8} //nolint:mnd // renewals have a third of it
}

// wait waits for the next turn, and reports whether ctx has not ended.
func (p *pacer) wait(ctx context.Context) bool {
	p.mu.Lock()
	t := time.Now()
	if p.next.Before(t) {
		p.next = t
	}
	turn := p.next
	p.next = turn.Add(time.Duration(float64(time.Second) / p.rate))
	p.mu.Unlock()
	if d := turn.Sub(t); d > 0 {
		return pause(ctx, d)
	}
	return ctx.Err() == nil
}

// stalled records for how long the worker did not run.
func (p *pacer) stalled(d time.Duration) { p.took(2 * d) } // once for the request, once for the answer

// took records the duration of a call that no other client can delay.
func (p *pacer) took(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow = max(p.slow, d)
}

// adjust changes the pace, ten times in a second.
func (p *pacer) adjust() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slow > p.bound {
		p.rate = max(leastRate, p.rate*slower)
	} else {
		p.rate = min(max(leastRate, p.most), p.rate*faster)
	}
	p.slow = 0
}
