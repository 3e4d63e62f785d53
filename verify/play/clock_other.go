//go:build unix && !linux

package play

import "golang.org/x/sys/unix"

const clockID = unix.CLOCK_MONOTONIC
