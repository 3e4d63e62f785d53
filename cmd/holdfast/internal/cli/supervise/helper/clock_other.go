//go:build unix && !netbsd && (!linux || holdfast_posix)

package helper

import "golang.org/x/sys/unix"

const monotonic = unix.CLOCK_MONOTONIC
