//go:build unix && (!linux || holdfast_posix)

// This file supervises a command with what POSIX has: on macOS and the BSDs, and for tests on Linux with the build tag
// holdfast_posix.

package supervise

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// thisProgram is the file that this process was started from. If it is replaced by another version while this process
// runs, that version becomes the watchdog: the messages between the two have to stay the same.
func thisProgram() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

// AdoptsOrphans reports whether the kernel hands processes whose parent has ended to this one.
func AdoptsOrphans() bool { return os.Getpid() == 1 }

// dieWithParent does nothing: POSIX has no such thing. The watchdog kills the command when its parent dies.
func dieWithParent(*syscall.SysProcAttr) {}

// changes receives a SIGCHLD when a child has stopped or ended.
type changes chan os.Signal

// childChanges must be called before the child is started: a system that ignores SIGCHLD leaves nothing to wait for.
func childChanges() changes {
	c := make(changes, 1)
	signal.Notify(c, syscall.SIGCHLD)
	return c
}

// missedChange is how late Wait sees a change whose signal was lost.
const missedChange = time.Second

// Wait waits until the command has stopped or ended. A command that ended is reaped.
//
// It asks without waiting, and holds the lock while it does, so that no signal is sent to a command that was reaped. The
// rest of the group is killed after the command was reaped: its ID cannot be that of another group while a member lives,
// and if none lives, another process had to take the ID and make it its group within these two system calls.
func (c *Child) Wait(killGroup func() bool) (syscall.WaitStatus, error) {
	again := time.NewTicker(missedChange)
	defer again.Stop()
	for {
		ws, changed, err := c.poll(killGroup)
		if changed || err != nil {
			return ws, err
		}
		select {
		case <-c.changes:
		case <-again.C:
		}
	}
}

// poll reports whether the command has stopped or ended since it was asked last.
func (c *Child) poll(killGroup func() bool) (syscall.WaitStatus, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ws syscall.WaitStatus
	pid, err := syscall.Wait4(c.Pid, &ws, syscall.WNOHANG|syscall.WUNTRACED, nil)
	switch {
	case err != nil:
		return ws, false, os.NewSyscallError("wait4", err)
	case pid == 0:
		return ws, false, nil
	case !ws.Stopped():
		c.reaped = true
		signal.Stop(c.changes)
		if killGroup() {
			_ = syscall.Kill(-c.Pid, syscall.SIGKILL)
		}
	}
	return ws, true, nil
}
