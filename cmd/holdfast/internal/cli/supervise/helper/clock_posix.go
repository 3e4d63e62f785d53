//go:build unix && (!linux || holdfast_posix)

package helper

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime reads a clock that is the same for all processes of the machine and is never set. On macOS and OpenBSD it
// includes the time for which the machine was suspended.
func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(monotonic, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
