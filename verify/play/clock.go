//go:build unix

package play

import (
	"time"

	"golang.org/x/sys/unix"
)

// now reads the clock that all processes of the machine share, in nanoseconds.
func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(clockID, &ts); err != nil {
		panic("play: this machine has no monotonic clock: " + err.Error()) // it has been asked before, by Run
	}
	return ts.Nano()
}

// clockTime translates a time with a monotonic reading.
func clockTime(t time.Time) int64 {
	return now() + int64(time.Until(t))
}
