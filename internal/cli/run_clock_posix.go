//go:build unix && !netbsd && (!linux || holdfast_posix)

package cli

import "golang.org/x/sys/unix"

const monotonic = unix.CLOCK_MONOTONIC
