package holdfast

import "time"

// SetAsleep replaces what the client's clock takes for the time that the machine
// was suspended. nil: it never is, and the keeper does not look for it.
func (c *Client) SetAsleep(asleep func() time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock.asleep, c.clock.asleep0 = asleep, 0
	c.wakeKeeper()
}

// Drift is the margin of a lease.
func Drift(ttl time.Duration) time.Duration { return drift(ttl) }
