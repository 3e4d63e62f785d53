package holdfast

import (
	"sync/atomic"
	"time"
)

// instant is a reading of a client's clock: the time since the client was made,
// including time that the machine was suspended.
type instant time.Duration

// clock counts local time. Go's monotonic clock stands still while a machine is
// suspended, but a lease does not: asleep adds what was missed.
type clock struct {
	base    time.Time
	asleep  asleepFunc // nil where it is not known
	asleep0 time.Duration
}

// asleepFunc tells for how long the machine was suspended in all, when now has just been
// read from time.Now.
type asleepFunc func(now time.Time) time.Duration

func newClock() clock {
	c := clock{base: time.Now(), asleep: suspendedTime()}
	if c.asleep != nil {
		c.asleep0 = c.asleep(c.base)
	}
	return c
}

// now reads the clock.
func (c *clock) now() instant {
	t := time.Now()
	return c.at(t, c.missedAt(t))
}

// missed is how long the machine was suspended since the client was made, to the
// millisecond: below that it is the time that reading two clocks takes.
func (c *clock) missed() time.Duration { return c.missedAt(time.Now()) }

func (c *clock) missedAt(now time.Time) time.Duration {
	if c.asleep == nil {
		return 0
	}
	return max(0, c.asleep(now)-c.asleep0).Truncate(time.Millisecond)
}

// at translates a reading of time.Now. missed is what missed said before t was
// read: the result is never later than the truth.
func (c *clock) at(t time.Time, missed time.Duration) instant {
	return instant(t.Sub(c.base) + missed)
}

// time translates an instant for people and timers.
func (c *clock) time(i instant) time.Time {
	return c.base.Add(time.Duration(i) - c.missed())
}

// sleepWatch spares the two system calls for as long as nothing points to a suspension.
// When a machine wakes up, the kernel moves the wall clock and CLOCK_BOOTTIME on in the
// same step (__timekeeping_inject_sleeptime in kernel/time/timekeeping.c), and both
// readings of time.Now come without a system call. So where the wall clock and the
// monotonic one have moved alike, the machine was not suspended between; where they
// have not, it was that, or somebody has set the wall clock, and the kernel is asked.
type sleepWatch struct {
	ask  func() time.Duration
	last atomic.Pointer[sleepReading]
}

// sleepReading is what the kernel said.
type sleepReading struct {
	at     time.Duration // by the monotonic clock
	apart  time.Duration // of the wall clock from the monotonic one
	asleep time.Duration
}

// What may pass without asking the kernel.
const (
	// apartAtMost is below what counts as suspended at all, and above what an adjusted
	// wall clock gains in a second (0.5 ms, adjtimex(2)).
	apartAtMost = time.Millisecond / 2
	// readingLasts is for a wall clock that is set back by just what a suspension took.
	readingLasts = 100 * time.Millisecond
)

// asleep is for how long the machine was suspended in all; at and apart are as in
// sleepReading.
func (s *sleepWatch) asleep(at, apart time.Duration) time.Duration {
	if r := s.last.Load(); r != nil && (apart-r.apart).Abs() < apartAtMost && (at-r.at).Abs() < readingLasts {
		return r.asleep
	}
	asleep := s.ask()
	s.last.Store(&sleepReading{at: at, apart: apart, asleep: asleep})
	return asleep
}

// drift is the margin by which a lease ends earlier here than on the backend:
// for clocks that run at rates less than 1 % apart, and for rounding to
// milliseconds on the way.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }
