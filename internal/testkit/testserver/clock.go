//go:build unix

package testserver

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/shim"
)

// Clock is the wall clock of servers, which a test sets while they run: see [shim.Clock].
//
// A server with FakeTime has one. Its methods belong to the test's goroutine.
type Clock struct {
	t     testing.TB
	clock *shim.Clock
}

// NewClock makes a clock that shows the real time, until it jumps.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	clocks, err := shim.NewClocks(t.Context(), Dir(t))
	check(t, err)
	clock, err := clocks.Clock("clock")
	check(t, err)
	return &Clock{t, clock}
}

// WithClock starts a server again, with a clock that the test sets, and returns both.
func WithClock[S clocked](t testing.TB, s S) (S, *Clock) {
	t.Helper()
	c := NewClock(t)
	FakeTime(s, c)
	return s, c
}

// FakeTime starts a server again, with a clock that the test sets.
func FakeTime(s clocked, c *Clock) {
	s.setClock(c)
	s.again()
}

// clocked is a server whose clock can be set: it loads the C library.
type clocked interface {
	setClock(c *Clock)
	again()
}

// Set makes the clock jump to ahead of the real time; less than 0 is behind it.
func (c *Clock) Set(ahead time.Duration) {
	c.t.Helper()
	check(c.t, c.clock.Set(ahead))
}
