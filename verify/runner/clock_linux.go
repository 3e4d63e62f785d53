package runner

import "golang.org/x/sys/unix"

// clockID continues while the machine is suspended, as leases do.
const clockID = unix.CLOCK_BOOTTIME
