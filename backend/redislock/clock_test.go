package redislock_test

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// withClock starts a server whose clock the test sets.
func withClock(t *testing.T) (*testserver.RedisServer, redislock.Config, *testserver.Clock) {
	t.Helper()
	s, clock := testserver.WithClock(t, testserver.Redis(t))
	cfg := redislock.Config{Quarantine: time.Millisecond}
	settled(t, open(t, s, cfg))
	return s, cfg, clock
}

// F12: the server's clock jumps ahead.
func TestServerClockAhead(t *testing.T) {
	t.Parallel()
	s, cfg, clock := withClock(t)
	leasetest.ClockAhead(t, open(t, s, cfg), open(t, s, cfg), clock)
}

// F13: the server's clock jumps back. What a timed lease had left is not known then.
func TestServerClockBack(t *testing.T) {
	t.Parallel()
	s, cfg, clock := withClock(t)
	leasetest.ClockBack(t, open(t, s, cfg), open(t, s, cfg), clock, false)
}
