package k8slock

import (
	"net/http"
	"sync"
	"time"
)

// clock estimates the API server's wall clock, from the Date, in seconds, of every answer. No lease ends
// by it: it is for people, for idle objects, and for the choice of sessions to observe.
type clock struct {
	mu     sync.Mutex
	at     time.Time // when it was seen, by the local monotonic clock
	server time.Time // what it was then
	answer time.Time // when the newest answer came, by the local monotonic clock
}

// silence returns for how long no answer has come.
func (c *clock) silence() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.answer)
}

// saw records an answer that has come just now, and its Date.
func (c *clock) saw(date string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = time.Now()
	said, err := http.ParseTime(date)
	if err != nil {
		return
	}
	const second, wrong = time.Second, 2 * time.Second
	if now := c.read(); c.at.IsZero() || said.After(now) || now.Sub(said) > wrong {
		c.at, c.server = time.Now(), said.Add(second/2) // somewhere in the second that was reported
	}
}

// now returns the server's time, or that of this machine if the server never reported it, for example
// because a proxy removes the Date from its answers.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read()
}

// read is now. c.mu is held.
func (c *clock) read() time.Time {
	if c.at.IsZero() {
		return time.Now().Round(0)
	}
	return c.server.Add(time.Since(c.at))
}
