//go:build !unix

package redislock

import "syscall"

// readable is not known on this system.
func readable(syscall.RawConn) bool { return false }
