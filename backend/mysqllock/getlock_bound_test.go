package mysqllock_test

import (
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// What every store of locks of a connection survives; package leasetest says what.

// The driver of the other client is told to count also the rows that a statement leaves as they
// are.
func TestUserLocksConnectionKilled(t *testing.T) {
	t.Parallel()
	bound, s := userLocksOn(t)
	conf, err := mysql.ParseDSN(s.DSNOf("root", s.Addr(), "test"))
	if err != nil {
		t.Fatal(err)
	}
	conf.ClientFoundRows = true
	other, err := mysqllock.NewUserLocks(mysqllock.UserLocksConfig{Conn: conf})
	leasetest.ConnectionEnded(t, bound, leasetest.Opened(t, other, err))
}

func TestUserLocksIdleConnectionKilled(t *testing.T) {
	t.Parallel()
	leasetest.IdleConnectionEnded(t, userLocks(t))
}

func TestUserLocksManyOnOneConnection(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	leasetest.ManyOnOneConnection(t, userLocks(t))
}

func TestUserLocksHolderCutOff(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	leasetest.HolderCutOff(t, userLocks(t))
}

func TestUserLocksCutOffAfterARenewal(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	leasetest.CutOffAfterARenewal(t, userLocks(t))
}

func TestUserLocksBreakOfADeafHolder(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	leasetest.BreakOfADeafHolder(t, userLocks(t))
}

func TestUserLocksTwoBreaks(t *testing.T) {
	t.Parallel()
	leasetest.TwoBreaksOfADeafHolder(t, userLocks(t))
}

func TestUserLocksKilledUnderLoad(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	leasetest.EndedUnderLoad(t, userLocks(t), 1)
}

func TestUserLocksLostReply(t *testing.T) {
	t.Parallel()
	leasetest.LostGrant(t, userLocks(t))
}

func TestUserLocksDeadRows(t *testing.T) {
	t.Parallel()
	leasetest.DeadRows(t, userLocks(t))
}

func TestUserLocksRenewalIsHeard(t *testing.T) {
	t.Parallel()
	leasetest.RenewalIsHeard(t, userLocks(t))
}

func TestUserLocksNotWrittenDown(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	leasetest.NotWrittenDown(t, userLocks(t))
}
