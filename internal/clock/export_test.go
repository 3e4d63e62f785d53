package clock

import "time"

// SleepWatch returns a function that asks the kernel, if that is due, how long the machine has been
// suspended. Its arguments are the reading of the monotonic clock and the difference of the wall
// clock from it.
func SleepWatch(ask func() time.Duration) func(at, apart time.Duration) time.Duration {
	s := &sleepWatch{ask: ask}
	return s.asleep
}
