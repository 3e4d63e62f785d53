//go:build unix

package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/shim"
)

const (
	// killedIn bounds the end of a process by SIGKILL, and others by a signal that asks for it.
	killedIn  = 20 * time.Second
	askedIn   = time.Minute
	pollEvery = 10 * time.Millisecond
	attempt   = 10 * time.Second
	logTail   = 16 << 10
)

// ErrEnded matches the error of a process that ended by itself.
var ErrEnded = errors.New("it ended by itself")

// Command says what to run.
type Command struct {
	// Argv is the program, a path or a name that is looked up in $PATH, and its arguments. Required.
	Argv []string
	// Env are variables, "NAME=value", added to the environment of this process. Optional.
	Env []string
	// Dir is its working folder. The log is written there too, to "output.log", after what earlier
	// runs wrote. Required.
	Dir string
	// Account is the user and the group that it runs as. Nil: those of this process.
	Account *syscall.Credential
	// Disk is the disk of its logs. Optional.
	Disk *shim.Disk
	// Interrupt is the signal with which an operator ends it in a hurry. Default: SIGKILL.
	Interrupt os.Signal
}

// Process is one run of a program. It ends with this process, also if this process is killed
// (Linux). All methods are safe for concurrent use.
type Process struct {
	name      string
	dir       string
	interrupt os.Signal
	logFrom   int64
	cmd       *exec.Cmd
	ended     chan struct{} // closed when the process is gone and reaped
	err       error         // how it ended; read after ended
	wanted    atomic.Bool   // its end was asked for
}

// Start runs a command. Errors: a program that is not installed; those of the system.
func Start(c Command) (*Process, error) {
	path, err := exec.LookPath(c.Argv[0])
	if err != nil {
		return nil, fmt.Errorf("%s is not installed: %w", c.Argv[0], err)
	}
	out, err := os.OpenFile(filepath.Join(c.Dir, "output.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", path, err)
	}
	defer func() { _ = out.Close() }() // the child has its own copy
	from, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", path, err)
	}
	p := &Process{name: filepath.Base(path), dir: c.Dir, interrupt: c.Interrupt, logFrom: from, ended: make(chan struct{})}
	p.cmd = exec.Command(path, c.Argv[1:]...) //nolint:gosec,noctx // it outlives any one call
	p.cmd.Dir = c.Dir
	p.cmd.Env = append(os.Environ(), c.Env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = Attributes(c.Account)
	attend := func(<-chan struct{}) {}
	if c.Disk != nil {
		if attend, err = c.Disk.Launch(p.cmd); err != nil {
			return nil, fmt.Errorf("start %s: %w", path, err)
		}
	}
	if err := p.start(); err != nil {
		close(p.ended)
		attend(p.ended)
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	attend(p.ended)
	return p, nil
}

// start runs the command from a thread that lives as long as the process does. The death signal
// comes when the parent's thread ends, not the parent: a thread of the runtime that happened to
// end would kill the server.
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

// Wanted notes that the end of the process, which comes by itself, is no failure.
func (p *Process) Wanted() { p.wanted.Store(true) }

// Signal sends a signal to the process alone. It is no error if the process is gone.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%v to %s: %w", s, p, err)
	}
	return nil
}

// Kill ends the process and the children that it started with SIGKILL, as a crash would, and waits
// until it is gone. A process that is gone is left alone.
func (p *Process) Kill() error {
	p.Wanted()
	if !p.Gone() {
		all := freeze(p.Pid()) // they start no more of them then
		if err := p.Signal(syscall.SIGKILL); err != nil {
			return err
		}
		signalAll(all, syscall.SIGKILL)
	}
	return p.left(killedIn)
}

// Ask asks the process to end with a signal, and waits until it is gone. Errors: it is still there
// after a minute.
func (p *Process) Ask(s os.Signal) error {
	p.Wanted()
	if err := p.Signal(s); err != nil {
		return err
	}
	return p.left(askedIn)
}

// Stop freezes the process and its children with SIGSTOP: the kernel continues to accept what is
// sent to it, and nothing answers.
func (p *Process) Stop() error {
	err := p.Signal(syscall.SIGSTOP)
	if !p.Gone() {
		freeze(p.Pid())
	}
	return err
}

// Cont thaws what Stop froze.
func (p *Process) Cont() error {
	if !p.Gone() {
		signalAll(descendants(p.Pid()), syscall.SIGCONT)
	}
	return p.Signal(syscall.SIGCONT)
}

// left waits until the process is gone, however it ended.
func (p *Process) left(timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
		return fmt.Errorf("%s is still there after %s", p, timeout) //nolint:err113 // for people
	}
}

// Wait waits until the process is gone and returns how it ended: nil for exit status 0, or an
// *exec.ExitError. Other errors: it is still there after the time-out.
func (p *Process) Wait(timeout time.Duration) error {
	if err := p.left(timeout); err != nil {
		return err
	}
	return p.err
}

// End ends the process with its Interrupt, and kills it if that takes long. Errors: ErrEnded if it
// ended by itself before.
func (p *Process) End() error {
	if p.Gone() && !p.wanted.Load() {
		return fmt.Errorf("%s: %w: %w", p, ErrEnded, p.err)
	}
	if p.interrupt != nil && !p.Gone() {
		p.Wanted()
		_, _ = p.Cont(), p.Signal(p.interrupt)
		_ = p.left(killedIn)
	}
	return p.Kill()
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

// Tail is the end of the log, short enough for an error.
func (p *Process) Tail() string {
	const most = 4096
	log := strings.TrimSpace(p.Log())
	return log[max(0, len(log)-most):]
}

// Gone reports whether the process has ended.
func (p *Process) Gone() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// String returns the name and the ID of the process.
func (p *Process) String() string { return fmt.Sprintf("%s (%d)", p.name, p.Pid()) }

// Await calls ready until it returns nil. Each call gets a context of ten seconds: it may start a
// process, on a busy machine. Errors: ErrEnded if the process ends; the last error of ready, when ctx or
// the time-out ends. Both have the end of its log.
func (p *Process) Await(ctx context.Context, timeout time.Duration, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		one, done := context.WithTimeout(ctx, attempt)
		err := ready(one)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			p.Wanted() // reported here
			return fmt.Errorf("%s: %w (%w) before it answered: %w\n%s", p, ErrEnded, p.err, err, p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w\n%s", p, err, p.Tail())
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
		fields := stat(pid)
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

// freeze stops a process and all that it started, and returns their IDs. A process may fork until it
// has really stopped, which takes a moment after the signal: so they are listed again until there are
// no more of them.
func freeze(pid int) []int {
	var all []int
	for found := []int{pid}; len(found) > 0; {
		signalAll(found, syscall.SIGSTOP)
		for _, pid := range found {
			awaitStopped(pid)
		}
		all = append(all, found...)
		found = slices.DeleteFunc(descendants(pid), func(pid int) bool { return slices.Contains(all, pid) })
	}
	return all
}

// awaitStopped waits until a process has stopped, or is gone. It gives up after a second: the disk may
// keep a process that long, which does nothing else meanwhile.
func awaitStopped(pid int) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 1000 {
		fields := stat(pid)
		if len(fields) == 0 || strings.Contains("TtZX", fields[0]) {
			return
		}
		<-tick.C
	}
}

// stat returns the fields of a process in /proc, from its state on. None: it is gone, or the system
// has no /proc.
func stat(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	// The name before them is in parentheses and may have blanks.
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
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
