//go:build !unix

package program

import "syscall"

// readable is not known on this system.
func readable(syscall.RawConn) bool { return false }
