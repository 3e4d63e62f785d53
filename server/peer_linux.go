package server

import "golang.org/x/sys/unix"

// peerUID asks the kernel, which kept the user ID when the process connected: see unix(7).
func peerUID(fd int) *uint32 {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil
	}
	return &cred.Uid
}
