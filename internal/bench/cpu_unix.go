//go:build unix

package bench

import (
	"syscall"
	"time"
)

// cpuTime returns the CPU time of this process so far; negative if it is unknown.
func cpuTime() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return -1
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
