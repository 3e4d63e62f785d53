package filelock

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// newClock returns CLOCK_BOOTTIME and the ID of the boot. The offsets of the time namespace are part of
// the ID: a process in another namespace takes our instants for those of another boot, and never
// compares them with its own.
func newClock() (clock, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return clock{}, fmt.Errorf("the ID of the boot: %w", err)
	}
	offsets, _ := os.ReadFile("/proc/self/timens_offsets") // kernels without time namespaces have none
	if _, err := bootTime(); err != nil {
		return clock{}, err
	}
	return clock{
		boot: digest(append(id, offsets...)),
		now: func() instant {
			t, _ := bootTime() // it worked before, and depends on nothing that changes
			return t
		},
	}, nil
}

func bootTime() (instant, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, fmt.Errorf("CLOCK_BOOTTIME: %w", err)
	}
	return instant(time.Duration(ts.Nano())), nil
}
