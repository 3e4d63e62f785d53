//go:build unix

package bench

import (
	"syscall"
	"time"
)

// cpuTime is what this process has used so far; negative where it is not known.
func cpuTime() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return -1
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
