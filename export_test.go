package holdfast

import "time"

// SetAsleep replaces what the client's clock takes for the time that the machine
// was suspended. nil: it never is, and the keeper does not look for it.
func (c *Client) SetAsleep(asleep func() time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock.asleep, c.clock.asleep0 = nil, 0
	if asleep != nil {
		c.clock.asleep = func(time.Time) time.Duration { return asleep() }
	}
	c.wakeKeeper()
}

// Drift is the margin of a lease.
func Drift(ttl time.Duration) time.Duration { return drift(ttl) }

// SleepWatch gives the function that asks the kernel, where that is due, for how long the
// machine was suspended: when the monotonic clock is at, and the wall clock so far apart.
func SleepWatch(ask func() time.Duration) func(at, apart time.Duration) time.Duration {
	s := &sleepWatch{ask: ask}
	return s.asleep
}
