package redlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// jump is how far the clocks jump: less than what keeps a node from voting.
const jump = 30 * time.Minute

// withClock starts a cluster, n nodes of which have a clock that the test sets.
func withClock(t *testing.T, n int) (cluster, *testserver.Clock) {
	t.Helper()
	c, clock := start(t), testserver.NewClock(t)
	for _, s := range c[:n] {
		testserver.FakeTime(s, clock)
		vouch(s, "hfr")
	}
	return c, clock
}

// F12, F13: the clock of one node jumps, ahead and back. The others keep the lock.
func TestClockOfOneNode(t *testing.T) {
	t.Parallel()
	c, clock := withClock(t, 1)
	b, other := c.open(t, slow), c.open(t, slow)
	for _, ahead := range []time.Duration{jump, -jump} {
		held := ask("n")
		before := take(t, b, held).Token
		clock.Set(ahead)
		if g, err := other.Acquire(leasetest.Within(t), ask("n")); !errors.Is(err, backend.ErrHeld) {
			t.Errorf("%s: the lock was acquired a second time: %+v, %v", ahead, g, err)
		}
		if err := renewed(t, b, held).Err; err != nil {
			t.Errorf("%s: %v", ahead, err)
		}
		give(t, b, held)
		next := ask("n")
		if token := take(t, other, next).Token; token <= before {
			t.Errorf("%s: token %d after %d", ahead, token, before)
		}
		give(t, other, next)
	}
}

// F12, not promised: the clock of one node jumps ahead, and the lease has the votes of a bare
// majority, because two nodes were down when it was granted. Without that node's vote another
// client is granted the lock. Its token is greater, and the holder learns it from its next
// renewal.
func TestClockOfOneNodeOfABareMajority(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c, clock := withClock(t, 1)
	b, other := c.open(t, slow), c.open(t, slow)
	for _, s := range c[nodes/2+1:] {
		s.Kill()
	}
	jumpEnds(t, b, other, clock, func() {
		for _, s := range c[nodes/2+1:] {
			s.Start()
		}
	})
}

// jumpEnds has the clocks jump ahead while b holds the lock. The other client is granted it, with a greater token, and the
// holder learns it from its next renewal.
func jumpEnds(t *testing.T, b, other *redlock.Backend, clock *testserver.Clock, before func()) {
	t.Helper()
	held := ask("n")
	first := take(t, b, held).Token
	before()
	clock.Set(jump)
	if token := take(t, other, ask("n", waiting)).Token; token <= first {
		t.Errorf("token %d after %d", token, first)
	}
	if renewed(t, b, held).Err == nil {
		t.Error("it was renewed")
	}
}

// F12: the clocks of all nodes jump ahead. The lease has expired, its holder learns it from
// the next renewal, and the token of the next lease is greater.
func TestClocksOfAllNodesAhead(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c, clock := withClock(t, nodes)
	b, other := c.open(t, slow), c.open(t, slow)
	jumpEnds(t, b, other, clock, func() {})
}

// F13: the clocks of all nodes jump back. A dead client has the lock for longer than its
// lease, until it is broken.
func TestClocksOfAllNodesBack(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c, clock := withClock(t, nodes)
	b, other := c.open(t, slow), c.open(t, slow)
	before := take(t, b, ask("n")).Token
	clock.Set(-jump)
	if g, err := other.Acquire(leasetest.Within(t), ask("n")); !errors.Is(err, backend.ErrHeld) {
		t.Errorf("the lock was acquired a second time: %+v, %v", g, err)
	}
	res, err := other.Break(leasetest.Within(t), backend.BreakRequest{Name: "n"})
	if err != nil || res.Token <= before {
		t.Fatalf("Break: %+v, %v", res, err)
	}
	if token := take(t, other, ask("n")).Token; token <= res.Token {
		t.Errorf("token %d after %d", token, res.Token)
	}
}
