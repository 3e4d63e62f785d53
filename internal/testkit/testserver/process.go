//go:build unix

package testserver

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
)

// startTimeout is how long the helpers of this package wait before they fail the test.
const startTimeout = launch.StartTimeout

// Command says what to run.
type Command struct {
	// Path is the program: a path, or a name that is looked up in $PATH. A program
	// that is not there fails the test. Required.
	Path string
	// Args are its arguments, without the program's name. Optional.
	Args []string
	// Env are variables, "NAME=value", added to the environment of the test.
	// Optional.
	Env []string
	// Dir is its working folder. The log is written there too, to "output.log",
	// after what earlier runs wrote. Default: a new [Dir].
	Dir string
	// Account runs it as another user, for servers that refuse to run as root. Nil: as the test
	// does. Optional.
	Account *syscall.Credential
	// Disk is the disk of its logs. Optional.
	Disk *SlowDisk
	// Interrupt ends the process with this signal at the end of the test, instead
	// of SIGKILL, and with SIGKILL after a while. Optional.
	Interrupt os.Signal
}

// Process is one run of a program. All methods are safe for concurrent use, except those that
// can fail the test: these belong to the test's goroutine.
type Process struct {
	*launch.Process
	t testing.TB
}

// Start runs the command and fails the test when it cannot. The process ends
// with the test: it is killed by its ID and waited for. When the test failed by
// then, the last of its output is logged.
func Start(t testing.TB, c Command) *Process {
	t.Helper()
	if c.Dir == "" {
		c.Dir = Dir(t)
	}
	l := launch.Command{Argv: append([]string{c.Path}, c.Args...), Env: c.Env, Dir: c.Dir, Account: c.Account, Interrupt: c.Interrupt}
	if c.Disk != nil {
		l.Disk = c.Disk.Disk
	}
	p, err := launch.Start(l)
	check(t, err)
	return adopt(t, p)
}

// check fails the test with an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
}

// adopt makes a process end with the test.
func adopt(t testing.TB, l *launch.Process) *Process {
	t.Helper()
	t.Cleanup(func() {
		ended := l.Gone() // its output is older than the failure
		err := l.End()
		if err != nil {
			t.Errorf("testserver: %v", err)
		}
		if err != nil || t.Failed() && !ended {
			t.Logf("the last output of %s:\n%s", l, lastLines(l.Log()))
		}
	})
	return &Process{l, t}
}

// Signal sends a signal to the process alone. It is no error if the process is gone: the test
// finds out by waiting for what it needs.
func (p *Process) Signal(s os.Signal) {
	p.t.Helper()
	check(p.t, p.Process.Signal(s))
}

// Kill ends the process and the children that it started with SIGKILL, as a
// crash would, and waits until it is gone. A process that is gone is left alone.
func (p *Process) Kill() {
	p.t.Helper()
	check(p.t, p.Process.Kill())
}

// Terminate asks the process to end with SIGTERM and waits until it is gone.
func (p *Process) Terminate() {
	p.t.Helper()
	check(p.t, p.Ask(syscall.SIGTERM))
}

// Stop freezes the process and its children with SIGSTOP: the kernel continues to accept what
// is sent to it, and nothing answers.
func (p *Process) Stop() {
	p.t.Helper()
	check(p.t, p.Process.Stop())
}

// Cont thaws what Stop froze.
func (p *Process) Cont() {
	p.t.Helper()
	check(p.t, p.Process.Cont())
}

// Wait waits until the process is gone and returns how it ended: nil for exit
// status 0, or an *exec.ExitError. It fails the test when that takes longer than
// the time-out.
func (p *Process) Wait(timeout time.Duration) error {
	p.t.Helper()
	err := p.Process.Wait(timeout)
	if !p.Gone() {
		check(p.t, err)
	}
	return err
}

// Await calls ready until it returns nil, and fails the test with its last error
// when that takes longer than the time-out, or when the process ends. Each call
// gets a context of one second.
func (p *Process) Await(timeout time.Duration, ready func(context.Context) error) {
	p.t.Helper()
	check(p.t, p.Process.Await(p.t.Context(), timeout, ready))
}

// lastLines is what a failed test shows of a server: few enough lines that the failure is still
// visible where only the end of a report is kept.
func lastLines(log string) string {
	const shown = 12
	lines := strings.Split(strings.TrimSpace(log), "\n")
	return strings.Join(lines[max(0, len(lines)-shown):], "\n")
}

// Dir makes a new folder with a short path, so that a Unix socket fits in it, and
// removes it at the end of the test.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf-") //nolint:usetesting // t.TempDir holds the test's name: too long for a socket
	check(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("testserver: %v", err)
		}
	})
	return dir
}

// FreePort returns a loopback TCP port that no process listens on. The kernel chose it and does
// not give it to another process for the next minute, except to a server that requests it by
// number: a connection on it is left in TIME_WAIT.
func FreePort(t testing.TB) int {
	t.Helper()
	addr, err := launch.FreeAddr()
	port, bad := strconv.Atoi(launch.Port(addr))
	check(t, errors.Join(err, bad))
	return port
}
