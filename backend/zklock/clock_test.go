package zklock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// F12, F13: sessions are not measured with a clock that jumps.
func TestServerClock(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, clock := testserver.WithClock(t, testserver.StartZooKeeper(t, 1)[0])
	leasetest.ClockMovesNothing(t, closing(t, s), closing(t, s), clock, leasetest.ClockJump, -leasetest.ClockJump)
}
