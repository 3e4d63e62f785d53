package holdfast

import "time"

// instant is a reading of a client's clock: the time since the client was made,
// including time that the machine was suspended.
type instant time.Duration

// clock counts local time. Go's monotonic clock stands still while a machine is
// suspended, but a lease does not: asleep adds what was missed.
type clock struct {
	base    time.Time
	asleep  func() time.Duration // suspended time in all; nil where it is not known
	asleep0 time.Duration
}

func newClock() clock {
	c := clock{base: time.Now(), asleep: suspendedTime()}
	if c.asleep != nil {
		c.asleep0 = c.asleep()
	}
	return c
}

// now reads the clock.
func (c *clock) now() instant { return instant(time.Since(c.base) + c.missed()) }

// missed is how long the machine was suspended since the client was made, to the
// millisecond: below that it is the time that reading two clocks takes.
func (c *clock) missed() time.Duration {
	if c.asleep == nil {
		return 0
	}
	return max(0, c.asleep()-c.asleep0).Truncate(time.Millisecond)
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

// drift is the margin by which a lease ends earlier here than on the backend:
// for clocks that run at rates less than 1 % apart, and for rounding to
// milliseconds on the way.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }
