package k8slock

import (
	"net/http"
	"sync"
	"time"
)

// clock is the API server's wall clock, about: it says the second with every answer. It
// is for people, and for what has been dead for so long that no clock can be that wrong.
type clock struct {
	mu    sync.Mutex
	at    time.Time     // when it was seen, by the local clock
	ahead time.Duration // of the local clock
}

func (c *clock) saw(date string, asked time.Time) {
	at, err := http.ParseTime(date)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The second that was said had begun when the answer left.
	if now := time.Now(); c.at.IsZero() || now.Sub(c.at) > time.Minute {
		c.at, c.ahead = now, at.Add(time.Second/2).Sub(asked.Round(0))
	}
}

// now is the server's time.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Round(0).Add(c.ahead)
}
