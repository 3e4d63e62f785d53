// Package clock counts local time for leases, including the time for which the machine is suspended.
package clock

import (
	"sync/atomic"
	"time"
)

// Instant is a reading of a Clock: the time since the clock was made, including the time for which the
// machine was suspended.
type Instant time.Duration

// Clock counts local time. Go's monotonic clock stands still while a machine is suspended, but a lease
// does not: asleep adds the time that the clock missed. All methods but SetAsleep are safe for
// concurrent use.
type Clock struct {
	base    time.Time
	asleep  asleepFunc // nil where it is unknown
	asleep0 time.Duration
}

// asleepFunc returns how long the machine has been suspended in total. now was read from time.Now
// immediately before.
type asleepFunc func(now time.Time) time.Duration

// New returns a clock that counts from now on.
func New() Clock {
	c := Clock{base: time.Now(), asleep: suspendedTime()}
	if c.asleep != nil {
		c.asleep0 = c.asleep(c.base)
	}
	return c
}

// SetAsleep replaces, for a test, the measure of the time that the machine was suspended. With nil the
// machine is never suspended.
func (c *Clock) SetAsleep(asleep func() time.Duration) {
	c.asleep, c.asleep0 = nil, 0
	if asleep != nil {
		c.asleep = func(time.Time) time.Duration { return asleep() }
	}
}

// Now reads the clock.
func (c *Clock) Now() Instant {
	now, _ := c.Read()
	return now
}

// Read reads the clock, and returns what Missed does as well.
func (c *Clock) Read() (Instant, time.Duration) {
	t := time.Now()
	missed := c.missedAt(t)
	return c.At(t, missed), missed
}

// Jumps reports whether the clock may advance by more than a timer waited, because it counts the time
// for which the machine is suspended.
func (c *Clock) Jumps() bool { return c.asleep != nil }

// Missed returns how long the machine has been suspended since the clock was made, in whole
// milliseconds: a smaller value is only the time taken to read two clocks.
func (c *Clock) Missed() time.Duration { return c.missedAt(time.Now()) }

func (c *Clock) missedAt(now time.Time) time.Duration {
	if c.asleep == nil {
		return 0
	}
	return max(0, c.asleep(now)-c.asleep0).Truncate(time.Millisecond)
}

// At converts a reading of time.Now. missed is a result of Missed from before t was read, so the
// instant is never later than the truth.
func (c *Clock) At(t time.Time, missed time.Duration) Instant {
	return Instant(t.Sub(c.base) + missed)
}

// Time converts an instant for people and timers.
func (c *Clock) Time(i Instant) time.Time {
	return c.base.Add(time.Duration(i) - c.Missed())
}

// sleepWatch avoids two system calls while nothing indicates a suspension. When a machine wakes up,
// the kernel advances the wall clock and CLOCK_BOOTTIME in the same step
// (__timekeeping_inject_sleeptime in kernel/time/timekeeping.c), and time.Now returns the wall
// clock and the monotonic clock without a system call. If both have advanced by the same amount,
// the machine was not suspended in between. If not, either it was suspended or the wall clock was
// set, and sleepWatch asks the kernel.
type sleepWatch struct {
	ask  func() time.Duration
	last atomic.Pointer[sleepReading]
}

// sleepReading is one answer of the kernel.
type sleepReading struct {
	at     time.Duration // by the monotonic clock
	apart  time.Duration // difference of the wall clock from the monotonic one
	asleep time.Duration
}

// The bounds within which the kernel is not asked.
const (
	// apartAtMost is below the shortest time that counts as suspended, and above what an adjusted
	// wall clock gains in a second (0.5 ms, adjtimex(2)).
	apartAtMost = time.Millisecond / 2
	// readingLasts covers a wall clock that is set back by exactly the length of a suspension.
	readingLasts = 100 * time.Millisecond
)

// asleep returns how long the machine has been suspended in total. at and apart are as in
// sleepReading.
func (s *sleepWatch) asleep(at, apart time.Duration) time.Duration {
	if r := s.last.Load(); r != nil && (apart-r.apart).Abs() < apartAtMost && (at-r.at).Abs() < readingLasts {
		return r.asleep
	}
	asleep := s.ask()
	s.last.Store(&sleepReading{at: at, apart: apart, asleep: asleep})
	return asleep
}

// Drift returns the margin by which a lease ends earlier on this side than on the backend. It
// covers clocks whose rates differ by less than 1 %, and the rounding to milliseconds in requests
// and answers.
func Drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }
