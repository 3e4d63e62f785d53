//go:build unix

package program

import "syscall"

// readable reports whether there is something to read, or the end, without reading it.
func readable(conn syscall.RawConn) bool {
	is := false
	err := conn.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
		is = err != syscall.EAGAIN && err != syscall.EINTR
		return true // it does not wait
	})
	return is || err != nil
}
