package pglock_test

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// F13: the locks of a connection do not depend on the clock.
func TestAdvisoryServerClockBack(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, clock := testserver.WithClock(t, testserver.Postgres(t))
	b, other := openAdvisory(t, advisoryURL(s, "postgres", s.Addr())), openAdvisory(t, advisoryURL(s, "postgres", s.Addr()))
	leasetest.ClockMovesNothing(t, b, other, clock, -leasetest.ClockJump)
}

// F12: when its clock jumps ahead, PostgreSQL may take connections for idle on which something
// arrived just now, and end them. The holder of the lock is notified, and the next holder has a
// greater token.
func TestAdvisoryServerClockAhead(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, clock := testserver.WithClock(t, testserver.Postgres(t))
	b, other := openAdvisory(t, advisoryURL(s, "postgres", s.Addr())), openAdvisory(t, advisoryURL(s, "postgres", s.Addr()))
	lost := make(chan backend.Loss, 1)
	id := leasetest.Session(t, b, leasetest.ClockJump/2, func(x backend.Loss) { lost <- x })
	before := leasetest.Take(t, b, leasetest.Ask("n", id))
	got := leasetest.Start(t, other, leasetest.Ask("n", leasetest.Session(t, other, 2*leasetest.ClockJump, nil)))
	leasetest.InQueue(t, other, "n", 1)
	clock.Set(leasetest.ClockJump)
	told := false
	select {
	case <-lost:
		told = true
	case <-time.After(10 * time.Second): // it did not read that clock, or is slow
	}
	res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id})
	switch {
	case err != nil || told && !res.SessionLost:
		t.Errorf("Renew: %+v, %v", res, err)
	case res.SessionLost:
		if !told {
			leasetest.Heard(t, lost)
		}
		if g := <-got; g.Err != nil || g.Grant.Token <= before {
			t.Errorf("the waiter has %+v after token %d", g, before)
		}
	case len(got) > 0:
		t.Errorf("the waiter has %+v, and the holder its session", <-got)
	}
}
