//go:build darwin || freebsd

package server

import "golang.org/x/sys/unix"

// peerUID asks the kernel, which kept the user ID when the process connected: see unix(4).
func peerUID(fd int) *uint32 {
	const level = 0 // SOL_LOCAL
	cred, err := unix.GetsockoptXucred(fd, level, unix.LOCAL_PEERCRED)
	if err != nil {
		return nil
	}
	return &cred.Uid
}
