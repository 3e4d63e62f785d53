//go:build !holdfast_posix

package cli

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// thisProgram is the file that this process runs, even if it was replaced or removed since.
func thisProgram() string { return "/proc/self/exe" }

// bootTime reads CLOCK_BOOTTIME, which is the same for all processes of the machine and
// includes the time for which it was suspended.
func bootTime() time.Duration { return readClock(unix.CLOCK_BOOTTIME) }

// dieWithParent has the kernel kill a process when its parent dies.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// changes is what wait needs to see the changes of a child: nothing, the kernel waits.
type changes struct{}

func childChanges() changes { return changes{} }

// wait waits until the command has stopped or ended. A command that ended is reaped.
func (c *child) wait(killGroup func() bool) (syscall.WaitStatus, error) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, c.pid, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, os.NewSyscallError("waitid", err)
		}
		c.mu.Lock()
		if info.Code != cldStopped && killGroup() {
			_ = syscall.Kill(-c.pid, syscall.SIGKILL) // the rest of the group
		}
		var ws syscall.WaitStatus
		_, err = syscall.Wait4(c.pid, &ws, syscall.WUNTRACED, nil)
		c.reaped = err == nil && !ws.Stopped()
		c.mu.Unlock()
		return ws, os.NewSyscallError("wait4", err)
	}
}

// cldStopped is CLD_STOPPED of waitid(2).
const cldStopped = 5
