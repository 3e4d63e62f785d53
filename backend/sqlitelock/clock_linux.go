package sqlitelock

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

var errNoBoot = errors.New("/proc/sys/kernel/random/boot_id: it names no boot")

// thisHost returns the clock that all processes of the host share: CLOCK_BOOTTIME, which cannot
// be set and which counts the time of a suspended machine.
func thisHost() (host, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return host{}, fmt.Errorf("the ID of the boot: %w", err)
	}
	boot := strings.TrimSpace(string(id))
	if boot == "" {
		return host{}, errNoBoot
	}
	offset := containerOffset()
	if _, err := bootTime(); err != nil {
		return host{}, err
	}
	return host{
		boot: boot,
		now: func() instant {
			t, _ := bootTime() // it was tried above, and nothing it depends on changes
			return t - offset
		},
		wall: time.Now,
	}, nil
}

func bootTime() (instant, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, fmt.Errorf("CLOCK_BOOTTIME: %w", err)
	}
	return instant(ts.Nano()), nil
}

// containerOffset returns how far the boot clock of this time namespace is ahead of the host's:
// containers of one host may share the file.
func containerOffset() instant {
	offsets, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0 // a kernel without time namespaces
	}
	for line := range strings.Lines(string(offsets)) {
		var seconds, nanoseconds int64
		if _, err := fmt.Sscanf(line, "boottime %d %d", &seconds, &nanoseconds); err == nil {
			return instant(seconds*int64(time.Second) + nanoseconds)
		}
	}
	return 0
}
