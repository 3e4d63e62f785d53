//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package filelock

import "time"

// newClock returns the wall clock: these systems have no clock that counts during a suspension together
// with an ID of the boot that never changes.
func newClock() (clock, error) {
	return clock{boot: "wall", now: func() instant { return instant(time.Now().UnixNano()) }}, nil
}
