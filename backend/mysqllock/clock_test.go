package mysqllock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// F12: the server's clock jumps ahead.
func TestServerClockAhead(t *testing.T) {
	t.Parallel()
	s, clock := testserver.WithClock(t, testserver.MariaDB(t))
	leasetest.ClockAhead(t, open(t, s.URL()), open(t, s.URL()), clock)
}

// F13: the server's clock jumps back.
func TestServerClockBack(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, clock := testserver.WithClock(t, testserver.MariaDB(t))
	leasetest.ClockBack(t, open(t, s.URL()), open(t, s.URL()), clock, true)
}

// F12, F13: the locks of a connection do not depend on the clock.
func TestUserLocksServerClock(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, clock := testserver.WithClock(t, testserver.MariaDB(t))
	b, other := openUserLocks(t, getlockURL(s, "root", s.Addr())), openUserLocks(t, getlockURL(s, "root", s.Addr()))
	leasetest.ClockMovesNothing(t, b, other, clock, leasetest.ClockJump, -leasetest.ClockJump)
}

// C2: the server goes back to a copy of its data folder.
func TestTokensOfARestoredServer(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	leasetest.Restored(t, func() backend.Backend { return open(t, s.URL()) }, s.Copy)
}

// C2: the same of user locks.
func TestUserLocksTokensOfARestoredServer(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	leasetest.Restored(t, func() backend.Backend { return openUserLocks(t, getlockURL(s, "root", s.Addr())) }, s.Copy)
}
