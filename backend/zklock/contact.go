package zklock

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// contact tracks how steadily the ensemble has answered a session. The server that a session talks
// to reports to the leader every half tick which sessions live. If nothing was answered for longer
// than a tick, because the process was stopped or the network stood still, the leader may know of
// nothing since before that. If that server dies now, the session ends by what the leader knows,
// earlier than a renewal would say. So a renewal counts only if the server has had the time to
// report. See Config.margin.
type contact struct {
	answered time.Time // the newest answer
	since    time.Time // the first answer after the newest silence
}

// answer records that the ensemble has answered. The session's mu is held.
func (c *contact) answer(now time.Time, tick time.Duration) {
	if between(c.answered, now) > tick {
		c.since = now
	}
	c.answered = now
}

// steadyIn returns how long to wait until the leader has been told. The session's mu is held.
func (c *contact) steadyIn(now time.Time, tick time.Duration) time.Duration {
	return tick/2 + tick/4 - now.Sub(c.since)
}

// between returns the time between two readings of the clocks. It includes the time that the
// machine was suspended for, which the monotonic clock does not count.
func between(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// heard records that the ensemble has answered a request that left at that moment. It reports
// whether the leader had heard of the session shortly before that.
func (s *session) heard(sent time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contact.answer(time.Now(), s.b.cfg.Tick)
	return s.contact.steadyIn(sent, s.b.cfg.Tick) <= 0
}

// settled waits until a renewal may count.
func (s *session) settled(ctx context.Context) error {
	s.mu.Lock()
	in := s.contact.steadyIn(time.Now(), s.b.cfg.Tick)
	s.mu.Unlock()
	switch {
	case in <= 0 || retry.Until(in, s.Life.Done(), ctx.Done()):
		return nil
	case s.Life.Err() != nil:
		return backend.ErrSessionLost
	}
	return context.Cause(ctx)
}
