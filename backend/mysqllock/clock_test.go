package mysqllock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// F12, F13: the locks of a connection do not depend on the clock.
func TestUserLocksServerClock(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, clock := testserver.WithClock(t, testserver.MariaDB(t))
	b, other := openUserLocks(t, getlockURL(s, "root", s.Addr())), openUserLocks(t, getlockURL(s, "root", s.Addr()))
	leasetest.ClockMovesNothing(t, b, other, clock, leasetest.ClockJump, -leasetest.ClockJump)
}

// C2: the server goes back to a copy of its data folder.
func TestUserLocksTokensOfARestoredServer(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	leasetest.Restored(t, func() backend.Backend { return openUserLocks(t, getlockURL(s, "root", s.Addr())) }, s.Copy)
}
