package holdfast

import "time"

// SetAsleep replaces the client's measure of the time that the machine was suspended. With nil the
// machine is never suspended, and the renewer does not check for it.
func (c *Client) SetAsleep(asleep func() time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock.SetAsleep(asleep)
	c.agent.Wake()
}
