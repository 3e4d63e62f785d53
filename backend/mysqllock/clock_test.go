package mysqllock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// F12: the server's clock jumps ahead.
func TestServerClockAhead(t *testing.T) {
	t.Parallel()
	s, clock := testserver.WithClock(t, testserver.MariaDB(t))
	leasetest.ClockAhead(t, open(t, s.URL()), open(t, s.URL()), clock)
}

// F13: the server's clock jumps back.
func TestServerClockBack(t *testing.T) {
	t.Parallel()
	s, clock := testserver.WithClock(t, testserver.MariaDB(t))
	leasetest.ClockBack(t, open(t, s.URL()), open(t, s.URL()), clock, true)
}

// F12, F13: the locks of a connection do not depend on the clock.
func TestUserLocksServerClock(t *testing.T) {
	t.Parallel()
	s, clock := testserver.WithClock(t, testserver.MariaDB(t))
	b, other := openUserLocks(t, getlockURL(s, "root", s.Addr())), openUserLocks(t, getlockURL(s, "root", s.Addr()))
	leasetest.ClockMovesNothing(t, b, other, clock, leasetest.ClockJump, -leasetest.ClockJump)
}
