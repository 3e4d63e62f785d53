package cli

import (
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// child is the command that runs under the lock, in a process group of its own.
type child struct {
	pid int

	mu     sync.Mutex // guards the process ID against being used after it was given back
	reaped bool
}

// startChild starts the command. The kernel kills it when the thread that started it
// dies: the caller's goroutine is locked to its thread, and outlives the command. With a
// terminal the command's group is put in its foreground.
func startChild(argv, env []string, stdio [3]*os.File, tty int) (*child, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, err
	}
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if tty >= 0 {
		attr.Foreground, attr.Ctty = true, tty
	}
	p, err := os.StartProcess(path, argv, &os.ProcAttr{
		Env: env, Files: []*os.File{stdio[0], stdio[1], stdio[2]}, Sys: attr,
	})
	if err != nil {
		return nil, err
	}
	c := &child{pid: p.Pid}
	_ = p.Release() // it is waited for below, so that a stop is seen too
	return c, nil
}

// signal sends s to the whole group, as long as the command was not reaped: after that
// its ID may be somebody else's.
func (c *child) signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		_ = syscall.Kill(-c.pid, s)
	}
}

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
			_ = syscall.Kill(-c.pid, syscall.SIGKILL) // what is left of the group
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

// exitStatus is the command's own, or 128 and the signal that ended it, as a shell says.
func exitStatus(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}
