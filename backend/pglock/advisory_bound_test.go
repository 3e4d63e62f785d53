package pglock_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// What every store of locks of a connection survives; package leasetest says what.

func TestAdvisoryConnectionTerminated(t *testing.T) {
	t.Parallel()
	s := advisory(t)
	leasetest.ConnectionEnded(t, s, s.Open())
}

func TestAdvisoryIdleConnectionTerminated(t *testing.T) {
	t.Parallel()
	leasetest.IdleConnectionEnded(t, advisory(t))
}

func TestAdvisoryManyLocksOnOneConnection(t *testing.T) {
	t.Parallel()
	leasetest.ManyOnOneConnection(t, advisory(t))
}

func TestAdvisoryHolderCutOff(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	leasetest.HolderCutOff(t, advisory(t))
}

func TestAdvisoryCutOffAfterARenewal(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	leasetest.CutOffAfterARenewal(t, advisory(t))
}

func TestAdvisoryBreakOfADeafHolder(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	leasetest.BreakOfADeafHolder(t, advisory(t))
}

func TestAdvisoryTwoBreaks(t *testing.T) {
	t.Parallel()
	leasetest.TwoBreaksOfADeafHolder(t, advisory(t))
}

func TestAdvisoryTerminatedUnderLoad(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	leasetest.EndedUnderLoad(t, advisory(t), 3)
}

func TestAdvisoryLostReply(t *testing.T) {
	t.Parallel()
	leasetest.LostGrant(t, advisory(t))
}

func TestAdvisoryDeadRows(t *testing.T) {
	t.Parallel()
	leasetest.DeadRows(t, advisory(t))
}

func TestAdvisoryRenewalIsHeard(t *testing.T) {
	t.Parallel()
	leasetest.RenewalIsHeard(t, advisory(t))
}

func TestAdvisoryNotWrittenDown(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	leasetest.NotWrittenDown(t, advisory(t))
}
