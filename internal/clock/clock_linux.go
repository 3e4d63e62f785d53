package clock

import (
	"math"
	"syscall"
	"time"
	"unsafe"
)

// Clock IDs of clock_gettime(2).
const (
	clockMonotonic = 1
	clockBoottime  = 7
)

// suspendedTime returns a function that reports how long the machine has been suspended since it
// booted: CLOCK_BOOTTIME counts that time, CLOCK_MONOTONIC does not. Both are read from the kernel,
// so the result is the same inside a bubble of testing/synctest, where time.Now is not.
func suspendedTime() asleepFunc {
	if _, ok := readClock(clockBoottime); !ok {
		return nil
	}
	s := &sleepWatch{ask: askKernel}
	started := time.Now()
	return func(now time.Time) time.Duration {
		at := now.Sub(started)
		return s.asleep(at, time.Duration(now.UnixNano())-at)
	}
}

// askKernel reads CLOCK_BOOTTIME between two readings of CLOCK_MONOTONIC. The time between two
// readings counts as suspended, which errs towards an early end. If that time is long, the thread
// was delayed, and askKernel reads again.
func askKernel() time.Duration {
	const tries, much = 4, 50 * time.Microsecond
	least := time.Duration(math.MaxInt64)
	before, _ := readClock(clockMonotonic)
	for range tries {
		boot, _ := readClock(clockBoottime)
		after, _ := readClock(clockMonotonic)
		least = min(least, boot-before)
		if after-before < much {
			break
		}
		before = after
	}
	return least
}

func readClock(id uintptr) (time.Duration, bool) {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0) //nolint:gosec // the address of a local, for the duration of the call
	return time.Duration(ts.Nano()), errno == 0
}
