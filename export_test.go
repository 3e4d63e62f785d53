package holdfast

import "time"

// SetAsleep replaces the client's measure of the time that the machine was suspended. With nil the
// machine is never suspended, and the renewer does not check for it.
func (c *Client) SetAsleep(asleep func() time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock.asleep, c.clock.asleep0 = nil, 0
	if asleep != nil {
		c.clock.asleep = func(time.Time) time.Duration { return asleep() }
	}
	c.wakeKeeper()
}

// Drift exposes drift.
func Drift(ttl time.Duration) time.Duration { return drift(ttl) }

// SleepWatch returns a function that asks the kernel, if that is due, how long the machine has been
// suspended. Its arguments are the reading of the monotonic clock and the difference of the wall
// clock from it.
func SleepWatch(ask func() time.Duration) func(at, apart time.Duration) time.Duration {
	s := &sleepWatch{ask: ask}
	return s.asleep
}
