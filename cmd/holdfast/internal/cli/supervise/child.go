//go:build unix

package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-io/holdfast/cmd/holdfast/internal/cli/supervise/helper"
)

// Child is the command that runs under the lock, in a process group of its own.
type Child struct {
	// Pid is the ID of the process and of its group.
	Pid     int
	changes changes

	mu     sync.Mutex // prevents use of the process ID after it was reaped
	reaped bool
}

// StartChild starts a process that will become the command, in a group of its own from the
// start. It waits until the returned function releases it. By then the watchdog must know the
// group, so that at no moment a command runs that nothing would kill. Where dieWithParent has an effect,
// the kernel kills the process when the thread that started it dies, so the caller's goroutine must be
// locked to its thread and outlive the command. The command's group is put in the foreground of the terminal
// whose descriptor tty is, unless that is negative. A stream of stdio that is nil is closed for the command.
func StartChild(argv, env []string, stdio [3]*os.File, tty int) (*Child, func() error, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, nil, err
	}
	gate, open, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer gate.Close() //nolint:errcheck // the child has its own
	attr := &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(attr)
	if tty >= 0 {
		attr.Foreground, attr.Ctty = true, tty
	}
	files, own := passedFiles(stdio)
	changes := childChanges()
	pid, _, err := syscall.StartProcess( //nolint:gosec // this is what it is for
		thisProgram(), append([]string{"holdfast", helper.Gate, strconv.Itoa(own), path}, argv...),
		&syscall.ProcAttr{Env: env, Files: append(files, gate.Fd()), Sys: attr},
	)
	runtime.KeepAlive(stdio)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start: %w", err), open.Close())
	}
	return &Child{Pid: pid, changes: changes}, func() error {
		_, err := open.Write([]byte{1})
		return errors.Join(err, open.Close())
	}, nil
}

// passedFiles returns the standard streams, and the descriptors above them that this process
// was started with and that the command inherits as well, such as a listening socket. It ends
// at the first number that is not in use, which it returns too.
func passedFiles(stdio [3]*os.File) ([]uintptr, int) {
	files := make([]uintptr, 0, len(stdio)+1)
	for _, f := range stdio {
		fd := ^uintptr(0) // closed
		if f != nil {
			fd = f.Fd()
		}
		files = append(files, fd)
	}
	for {
		n := len(files)
		flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 { // exec closes all descriptors of this program
			return files, n
		}
		files = append(files, uintptr(n))
	}
}

// Signal sends s to the whole group, unless the command was reaped: after that its ID may
// belong to another process. It returns EPERM if the command belongs to another user: the group's other processes have got the
// signal.
func (c *Child) Signal(s syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped {
		return nil
	}
	_ = syscall.Kill(-c.Pid, s)
	return syscall.Kill(c.Pid, 0)
}

// Foreign reports whether processes of another user are left in the group after the command was reaped and the rest of the
// group killed. Processes that were killed may need a moment to end, and are in the group until they are reaped.
func (c *Child) Foreign() bool {
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for timeout := time.After(time.Second); ; {
		err := syscall.Kill(-c.Pid, 0)
		if errors.Is(err, syscall.ESRCH) {
			return false
		}
		select {
		case <-again.C:
			ReapOrphans()
		case <-timeout:
			return errors.Is(err, syscall.EPERM)
		}
	}
}

// ReapOrphans reaps the processes that the kernel has handed to this one, see AdoptsOrphans, and that have ended. It leaves
// alone the process IDs of own, and the group of this process: there are programs that a library has started and waits
// for. It does nothing where there is no /proc.
func ReapOrphans(own ...int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		text, _ := os.ReadFile(list) //nolint:gosec // of the kernel
		for word := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(word)
			if group, gone := syscall.Getpgid(pid); errors.Join(err, gone) == nil && group != syscall.Getpgrp() && !slices.Contains(own, pid) {
				_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
			}
		}
	}
}

// ExitStatus returns the command's own status, or 128 plus the signal that ended it, as a shell
// does.
func ExitStatus(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}
