//go:build unix

package testserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// How long the helpers of this package wait before they fail the test. Starts are slow on a
// busy machine; an end by SIGKILL is not.
const (
	startTimeout = 60 * time.Second
	endTimeout   = 20 * time.Second
	pollEvery    = 10 * time.Millisecond
	logTail      = 16 << 10
)

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
	// User and Group run it as another user, for servers that refuse to run as
	// root. Both zero: as the test does. Optional.
	User, Group uint32
	// Disk is the disk of its logs. Optional.
	Disk *SlowDisk
	// Interrupt ends the process with this signal at the end of the test, instead
	// of SIGKILL, and with SIGKILL after a while. Optional.
	Interrupt os.Signal
}

// Process is one run of a program. All methods are safe for concurrent use, except those that
// can fail the test: these belong to the test's goroutine.
type Process struct {
	t       testing.TB
	name    string
	dir     string
	logFrom int64
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the process is gone and reaped
	err     error         // how it ended; read after ended
	wanted  atomic.Bool   // the test asked for the end
}

// Start runs the command and fails the test when it cannot. The process ends
// with the test: it is killed by its ID and waited for. When the test failed by
// then, the last of its output is logged.
func Start(t testing.TB, c Command) *Process {
	t.Helper()
	path, err := exec.LookPath(c.Path)
	if err != nil {
		t.Fatalf("testserver: %s is not installed: %v", c.Path, err)
	}
	if c.Dir == "" {
		c.Dir = Dir(t)
	}
	out, err := os.OpenFile(filepath.Join(c.Dir, "output.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatalf("testserver: log of %s: %v", c.Path, err)
	}
	// The child has its own copy.
	defer func() { _ = out.Close() }()
	from, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatalf("testserver: log of %s: %v", c.Path, err)
	}
	p := &Process{t: t, name: filepath.Base(path), dir: c.Dir, logFrom: from, ended: make(chan struct{})}
	//nolint:gosec,noctx // a test's own program, which outlives any one call
	p.cmd = exec.Command(path, c.Args...)
	p.cmd.Dir = c.Dir
	p.cmd.Env = append(os.Environ(), c.Env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = sysProcAttr(c)
	attend := func(<-chan struct{}) {}
	if c.Disk != nil {
		attend = c.Disk.launch(p.cmd)
	}
	if err := p.start(); err != nil {
		close(p.ended)
		attend(p.ended)
		t.Fatalf("testserver: start %s: %v", path, err)
	}
	attend(p.ended)
	t.Cleanup(func() { p.cleanup(c.Interrupt) })
	return p
}

// start runs the command from a thread that lives as long as the process does. The death signal
// comes when the parent's thread ends, not the parent: a thread of the runtime that happened to
// end would kill the server during the test.
func (p *Process) start() error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := p.cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		p.err = p.cmd.Wait()
		killGroup(p.Pid())
		close(p.ended)
	}()
	return <-started
}

// Pid is the ID of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Dir is the folder that it runs in.
func (p *Process) Dir() string { return p.dir }

// Ended is closed when the process is gone.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Signal sends a signal to the process alone. It is no error if the process is gone: the test
// finds out by waiting for what it needs.
func (p *Process) Signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatalf("testserver: %v to %s (%d): %v", s, p.name, p.Pid(), err)
	}
}

// Kill ends the process and the children that it started with SIGKILL, as a
// crash would, and waits until it is gone. A process that is gone is left alone.
func (p *Process) Kill() {
	p.t.Helper()
	p.wanted.Store(true)
	if !p.gone() {
		p.Signal(syscall.SIGSTOP) // it starts no more of them while they are listed
		children := descendants(p.Pid())
		p.Signal(syscall.SIGKILL)
		signalAll(children, syscall.SIGKILL)
	}
	_ = p.Wait(endTimeout) // killed: that is how it ended
}

// Terminate asks the process to end with SIGTERM and waits until it is gone.
func (p *Process) Terminate() {
	p.t.Helper()
	p.wanted.Store(true)
	p.Signal(syscall.SIGTERM)
	_ = p.Wait(startTimeout) // how it ended does not matter here
}

// Stop freezes the process and its children with SIGSTOP: the kernel continues to accept what
// is sent to it, and nothing answers.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(syscall.SIGSTOP)
	if !p.gone() {
		signalAll(descendants(p.Pid()), syscall.SIGSTOP)
	}
}

// Cont thaws what Stop froze.
func (p *Process) Cont() {
	p.t.Helper()
	if !p.gone() {
		signalAll(descendants(p.Pid()), syscall.SIGCONT)
	}
	p.Signal(syscall.SIGCONT)
}

// Wait waits until the process is gone and returns how it ended: nil for exit
// status 0, or an *exec.ExitError. It fails the test when that takes longer than
// the time-out.
func (p *Process) Wait(timeout time.Duration) error {
	p.t.Helper()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.ended:
		return p.err
	case <-timer.C:
		p.t.Fatalf("testserver: %s (%d) is still there after %s", p.name, p.Pid(), timeout)
		return nil
	}
}

// Log is the end of what this run wrote to its standard output and error.
func (p *Process) Log() string {
	f, err := os.Open(filepath.Join(p.dir, "output.log"))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	from := p.logFrom
	if info, err := f.Stat(); err == nil && info.Size()-logTail > from {
		from = info.Size() - logTail
	}
	b, err := io.ReadAll(io.NewSectionReader(f, from, logTail))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (p *Process) gone() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *Process) cleanup(interrupt os.Signal) {
	ended := p.gone() && p.wanted.Load() // its output is older than the failure
	switch {
	case p.gone() && !p.wanted.Load():
		p.t.Errorf("testserver: %s (%d) ended by itself: %v", p.name, p.Pid(), p.err)
	case interrupt != nil && !p.gone():
		p.Cont()
		p.Signal(interrupt)
		timer := time.NewTimer(endTimeout)
		defer timer.Stop()
		select {
		case <-p.ended:
		case <-timer.C:
		}
	}
	if !p.gone() {
		p.Kill()
	}
	if p.t.Failed() && !ended {
		p.t.Logf("the last output of %s (%d):\n%s", p.name, p.Pid(), lastLines(p.Log()))
	}
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
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
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
	port, err := reservePort(t.Context())
	if err != nil {
		t.Fatalf("testserver: free port: %v", err)
	}
	return port
}

func reservePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("listen: %w", err)
	}
	defer func() { _ = l.Close() }()
	var d net.Dialer
	dialled, err := d.DialContext(ctx, "tcp4", l.Addr().String())
	if err != nil {
		return 0, fmt.Errorf("dial: %w", err)
	}
	defer func() { _ = dialled.Close() }()
	accepted, err := l.Accept()
	if err != nil {
		return 0, fmt.Errorf("accept: %w", err)
	}
	// The side that closes first is left in TIME_WAIT: the listening side must be.
	if err := accepted.Close(); err != nil {
		return 0, fmt.Errorf("close: %w", err)
	}
	if _, err := dialled.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("read: %w", err)
	}
	_, text, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return 0, fmt.Errorf("address: %w", err)
	}
	return strconv.Atoi(text) //nolint:wrapcheck // it names the text
}

// Await calls ready until it returns nil, and fails the test with its last error
// when that takes longer than the time-out, or when the process ends. Each call
// gets a context of one second.
func (p *Process) Await(timeout time.Duration, ready func(context.Context) error) {
	p.t.Helper()
	if err := p.await(timeout, ready); err != nil {
		p.t.Fatalf("testserver: %s (%d) is not ready: %v\n%s", p.name, p.Pid(), err, p.Log())
	}
}

func (p *Process) await(timeout time.Duration, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(p.t.Context(), timeout)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		one, done := context.WithTimeout(ctx, time.Second)
		err := ready(one)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			p.wanted.Store(true) // reported here
			return fmt.Errorf("it ended (%w) before it answered: %w", p.err, err)
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// CPU is the processor time that the server, and those of its children that are still running,
// have used. It counts in hundredths of a second, on Linux; elsewhere it is 0.
func (p *Process) CPU() time.Duration {
	const tick = 10 * time.Millisecond // what the kernel reports to programs, whatever it counts in
	var all time.Duration
	for _, pid := range append(descendants(p.Pid()), p.Pid()) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it is gone
		}
		// The fields after the name, which is in parentheses and may have blanks.
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		const user, system = 11, 12
		for _, n := range []int{user, system} {
			if len(fields) > n {
				ticks, _ := strconv.ParseInt(fields[n], 10, 64)
				all += time.Duration(ticks) * tick
			}
		}
	}
	return all
}

// descendants are the processes that pid started, and those that they started.
func descendants(pid int) []int {
	var all []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		b, err := os.ReadFile(list) //nolint:gosec // a name that /proc gave
		if err != nil {
			continue // the thread is gone
		}
		for field := range strings.FieldsSeq(string(b)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(append(all, child), descendants(child)...)
			}
		}
	}
	return all
}

func signalAll(pids []int, s syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, s) // it may be gone already
	}
}
