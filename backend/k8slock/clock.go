package k8slock

import (
	"net/http"
	"sync"
	"time"
)

// clock is the API server's wall clock, about: it says the second with every answer. It is
// for people, and for what has been dead for so long that no clock can be that wrong.
type clock struct {
	mu     sync.Mutex
	at     time.Time // when it was seen, by the local monotonic clock
	server time.Time // what it was then
	answer time.Time // when the newest answer came, by the local monotonic clock
}

// answered takes note of an answer that has come just now.
func (c *clock) answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = time.Now()
}

// silence is for how long no answer has come.
func (c *clock) silence() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.answer)
}

// saw takes note of the Date of an answer that has come just now.
func (c *clock) saw(date string) {
	said, err := http.ParseTime(date)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	const second, wrong = time.Second, 2 * time.Second
	if now := c.read(); c.at.IsZero() || said.After(now) || now.Sub(said) > wrong {
		c.at, c.server = time.Now(), said.Add(second/2) // somewhere in the second that was said
	}
}

// now is the server's time.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read()
}

// said is the server's time; false: it never told, as where a proxy leaves that out of its
// answers. Then now is the time of this machine, which is good for people alone.
func (c *clock) said() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read(), !c.at.IsZero()
}

// read is now. c.mu is held.
func (c *clock) read() time.Time {
	if c.at.IsZero() {
		return time.Now().Round(0)
	}
	return c.server.Add(time.Since(c.at))
}
