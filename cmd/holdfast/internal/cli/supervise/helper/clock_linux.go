//go:build !holdfast_posix

package helper

import (
	"syscall"
	"time"
	"unsafe"
)

// bootTime reads CLOCK_BOOTTIME, which is the same for all processes of the machine and includes the time for which it
// was suspended.
func bootTime() time.Duration {
	const boottime = 7
	var ts syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, boottime, uintptr(unsafe.Pointer(&ts)), 0) //nolint:gosec // the address of a local, for the duration of the call
	if errno != 0 {
		return 0
	}
	return time.Duration(ts.Nano())
}
