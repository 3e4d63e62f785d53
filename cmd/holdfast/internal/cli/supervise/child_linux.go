//go:build !holdfast_posix

package supervise

import (
	"errors"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// thisProgram is the file that this process runs, even if it was replaced or removed since.
func thisProgram() string { return "/proc/self/exe" }

// AdoptsOrphans reports whether the kernel hands processes whose parent has ended to this one.
func AdoptsOrphans() bool {
	var subreaper int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&subreaper)), 0, 0, 0) //nolint:gosec // the address of a local, for the duration of the call
	return os.Getpid() == 1 || err == nil && subreaper != 0
}

// dieWithParent has the kernel kill a process when its parent dies.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// changes is what Wait needs to see the changes of a child: nothing, the kernel waits.
type changes struct{}

func childChanges() changes { return changes{} }

// Wait waits until the command has stopped or ended. A command that ended is reaped.
func (c *Child) Wait(killGroup func() bool) (syscall.WaitStatus, error) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, c.Pid, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, os.NewSyscallError("waitid", err)
		}
		c.mu.Lock()
		if info.Code != cldStopped && killGroup() {
			_ = syscall.Kill(-c.Pid, syscall.SIGKILL) // the rest of the group
		}
		var ws syscall.WaitStatus
		_, err = syscall.Wait4(c.Pid, &ws, syscall.WUNTRACED, nil)
		c.reaped = err == nil && !ws.Stopped()
		c.mu.Unlock()
		return ws, os.NewSyscallError("wait4", err)
	}
}

// cldStopped is CLD_STOPPED of waitid(2).
const cldStopped = 5
