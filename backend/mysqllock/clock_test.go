package mysqllock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/leasetest"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// withClock starts a server whose clock the test sets.
func withClock(t *testing.T) (*testserver.MariaDBServer, *testserver.Clock) {
	t.Helper()
	s, clock := testserver.MariaDB(t), testserver.NewClock(t)
	s.FakeTime(clock)
	return s, clock
}

// F12: the server's clock jumps ahead.
func TestServerClockAhead(t *testing.T) {
	t.Parallel()
	s, clock := withClock(t)
	leasetest.ClockAhead(t, open(t, s.URL()), open(t, s.URL()), clock)
}

// F13: the server's clock jumps back.
func TestServerClockBack(t *testing.T) {
	t.Parallel()
	s, clock := withClock(t)
	leasetest.ClockBack(t, open(t, s.URL()), open(t, s.URL()), clock, true)
}

// F12, F13: the locks of a connection are not the clock's.
func TestUserLocksServerClock(t *testing.T) {
	t.Parallel()
	s, clock := withClock(t)
	b, other := openUserLocks(t, getlockURL(s, "root", s.Addr())), openUserLocks(t, getlockURL(s, "root", s.Addr()))
	leasetest.ClockMovesNothing(t, b, other, clock, leasetest.ClockJump, -leasetest.ClockJump)
}
