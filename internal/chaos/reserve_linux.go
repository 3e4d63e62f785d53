package chaos

import (
	"fmt"
	"syscall"
)

// reserve takes a free port of the loopback with a socket that never listens, so that the port
// stays ours while connections are refused: the kernel assigns it to no process that requests
// any port, neither to listen on nor to connect from.
func reserve() (string, func(), error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("socket: %w", err)
	}
	free := func() { _ = syscall.Close(fd) }
	// Package net sets the same option on the socket that listens; with both, the
	// two may share the address.
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		free()
		return "", nil, fmt.Errorf("setsockopt: %w", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		free()
		return "", nil, fmt.Errorf("bind: %w", err)
	}
	addr, err := syscall.Getsockname(fd)
	if err != nil {
		free()
		return "", nil, fmt.Errorf("getsockname: %w", err)
	}
	in4, ok := addr.(*syscall.SockaddrInet4)
	if !ok {
		free()
		return "", nil, fmt.Errorf("getsockname: an address of kind %T", addr)
	}
	return fmt.Sprintf("127.0.0.1:%d", in4.Port), free, nil
}
