package runner

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/internal/retry"
)

// pacer bounds how fast a worker requests locks. On a machine that is short of processors it
// slows down: the behaviour of work that waits for a processor, a renewal above all, shows
// little about a lock.
type pacer struct {
	turn  chan struct{} // one task at a time waits for the next request, so that a new pace applies to all
	mu    sync.Mutex
	most  float64 // per second
	rate  float64
	next  time.Time           // when the next request may be made
	calls map[int64]time.Time // that no other client can delay, and when they began
	slow  time.Duration       // the longest time of such a call since the last adjustment
	bound time.Duration       // the longest slow that is acceptable
}

// The bounds of the pace, and how fast it changes.
const (
	leastRate  = 1.0
	firstShare = 0.125
	slower     = 0.7
	faster     = 1.08
	mostLate   = 10 * time.Millisecond // by how much requests that came late may be made up for
)

// newPacer returns a pacer that begins with first requests per second, for leases of a TTL. Calls
// that take a large part of the TTL, although no other client can delay them, slow it down.
func newPacer(first float64, most int, ttl time.Duration) *pacer {
	return &pacer{
		turn: make(chan struct{}, 1), calls: make(map[int64]time.Time),
		most: float64(most), rate: max(leastRate, min(first, firstShare*float64(most))), bound: ttl / 8, //nolint:mnd // renewals have a third of it
	}
}

// wait waits for the next turn, and reports whether ctx has not ended.
func (p *pacer) wait(ctx context.Context) bool {
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-p.turn }()
	for d := p.left(); d > 0; d = p.left() {
		if !retry.Pause(ctx, d) {
			return false
		}
	}
	return ctx.Err() == nil
}

// left returns how long it is until the next request, which it counts if it is due.
func (p *pacer) left() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := time.Now()
	if earliest := t.Add(-mostLate); p.next.Before(earliest) {
		p.next = earliest
	}
	d := p.next.Sub(t)
	if d <= 0 {
		p.next = p.next.Add(time.Duration(float64(time.Second) / p.rate))
	}
	return d
}

// stalled records for how long the worker did not run.
func (p *pacer) stalled(d time.Duration) { // once for the request, once for the answer
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow = max(p.slow, 2*d) //nolint:mnd // see above
}

// begins records a call that no other client can delay.
func (p *pacer) begins(op int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[op] = time.Now()
}

// ends records that such a call has ended.
func (p *pacer) ends(op int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow = max(p.slow, time.Since(p.calls[op]))
	delete(p.calls, op)
}

// adjust changes the pace, ten times in a second.
func (p *pacer) adjust() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, begun := range p.calls {
		p.slow = max(p.slow, time.Since(begun))
	}
	if p.slow > p.bound {
		p.rate = max(leastRate, p.rate*slower)
	} else {
		p.rate = min(max(leastRate, p.most), p.rate*faster)
	}
	p.slow = 0
}
