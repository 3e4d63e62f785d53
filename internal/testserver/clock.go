//go:build unix

package testserver

import (
	_ "embed" // for the shim
	"testing"
	"time"
)

//go:embed shim/clock.c
var clockShim []byte

// Clock is the wall clock of servers, which a test sets while they run: it jumps, as that of
// a machine does whose time is corrected. Their other clocks, and how long they sleep, stay
// as they are. It works in programs that ask the C library for the time: Redis, PostgreSQL,
// MariaDB and what runs in Java do; what is written in Go asks the kernel itself.
//
// A server with FakeTime has one. Its methods belong to the test's goroutine.
type Clock struct {
	shim    *shim // its number is the milliseconds that are added
	library string
}

// NewClock makes a clock that tells the time, until it jumps.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	s := newShim(t, "CLOCK_SHIM")
	return &Clock{shim: s, library: s.build("clock.so", clockShim, "-shared", "-fPIC")}
}

// WithClock starts a server again, with a clock that the test sets, and gives both.
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

// ownTime is the clock of a server.
type ownTime struct{ clock *Clock } // nil: the machine's

func (o *ownTime) setClock(c *Clock) { o.clock = c }

// Set makes the clock jump to so much ahead of the time; less than 0 is behind it.
func (c *Clock) Set(ahead time.Duration) {
	c.shim.t.Helper()
	c.shim.set(ahead.Milliseconds())
}

// env is what a program needs to have this clock; that of no clock is nothing.
func (c *Clock) env() []string {
	if c == nil {
		return nil
	}
	return []string{"LD_PRELOAD=" + c.library, c.shim.variable + "=" + c.shim.file}
}
