package holdfast

import (
	"syscall"
	"time"
	"unsafe"
)

// Clock IDs of clock_gettime(2).
const (
	clockMonotonic = 1
	clockBoottime  = 7
)

// suspendedTime gives a function that tells how long the machine was suspended
// since it booted: CLOCK_BOOTTIME counts that time, CLOCK_MONOTONIC does not.
// Both are read from the kernel, so the answer is the same inside a bubble of
// testing/synctest, where time.Now is not.
func suspendedTime() func() time.Duration {
	if _, ok := readClock(clockBoottime); !ok {
		return nil
	}
	return func() time.Duration {
		// Monotonic first: a pause between the two readings then counts as
		// suspended, which errs on the side of an early end.
		mono, _ := readClock(clockMonotonic)
		boot, _ := readClock(clockBoottime)
		return boot - mono
	}
}

func readClock(id uintptr) (time.Duration, bool) {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0) //nolint:gosec // the address of a local, for the length of the call
	return time.Duration(ts.Nano()), errno == 0
}
