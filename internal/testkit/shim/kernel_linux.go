package shim

import (
	"syscall"
	"unsafe"
)

// What follows is the part of golang.org/x/sys/unix that a Disk needs: this module requires no other.

// Requests of seccomp_unotify(2), and the flag with which the kernel executes a call unchanged.
const (
	notifRecv     = 0xc0502100
	notifSend     = 0xc0182101
	notifIDValid  = 0x40082102
	notifContinue = 1
)

// System calls that package syscall does not name. Their numbers are the same on every architecture.
const (
	sysPidfdSendSignal = 424
	sysPidfdOpen       = 434
	sysPidfdGetfd      = 438
)

func ioctl(fd int, request uintptr, arg unsafe.Pointer) syscall.Errno {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	return errno
}

// pollRead blocks until fd can be read, and returns false if it never will be.
func pollRead(fd int) (bool, error) {
	const pollIn = 1
	event := struct {
		fd            int32
		events, found int16
	}{fd: int32(fd), events: pollIn} //nolint:gosec // a file descriptor is small
	_, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&event)), 1, 0, 0, 0, 0) //nolint:gosec // the kernel's interface
	return event.found&pollIn != 0, failure(errno)
}

// pidfdOpen returns the kernel's handle of a process.
func pidfdOpen(pid int) (int, error) {
	fd, _, errno := syscall.Syscall(sysPidfdOpen, uintptr(pid), 0, 0)
	return int(fd), failure(errno)
}

// pidfdEnded reports whether the process has ended, and its parent has taken note of that.
func pidfdEnded(process int) bool {
	_, _, errno := syscall.Syscall6(sysPidfdSendSignal, uintptr(process), 0, 0, 0, 0, 0)
	return errno == syscall.ESRCH
}

// pidfdGetfd returns a copy of a file descriptor of a process.
func pidfdGetfd(process, fd int) (int, error) {
	own, _, errno := syscall.Syscall(sysPidfdGetfd, uintptr(process), uintptr(fd), 0)
	return int(own), failure(errno)
}

// fileFlags returns the flags that a file was opened with.
func fileFlags(fd int) (int, error) {
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFL, 0)
	return int(flags), failure(errno)
}

func failure(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
