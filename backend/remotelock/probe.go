package remotelock

import (
	"time"

	"github.com/holdfast-io/holdfast/internal/remoteprobe"
)

// probe returns what the tests with a server see and set of b.
func (b *Backend) probe() remoteprobe.Probe {
	t := b.together
	locked := func(f func() int) int {
		t.mu.Lock()
		defer t.mu.Unlock()
		return f()
	}
	return remoteprobe.Probe{
		SetPoll:     func(d time.Duration) { b.poll = d },
		SetLate:     func(d time.Duration) { locked(func() int { t.late = d; return 0 }) },
		Queued:      func() int { return locked(func() int { return len(t.queue) }) },
		Requests:    func() int { return locked(func() int { return t.requests }) },
		MaxRequests: maxRequests, MaxItems: maxItems,
	}
}
