//go:build unix && !linux && !netbsd

package runner

import "golang.org/x/sys/unix"

const clockID = unix.CLOCK_MONOTONIC
