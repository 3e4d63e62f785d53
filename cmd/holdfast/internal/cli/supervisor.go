package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/cmd/holdfast/internal/cli/supervise"
)

// supervisor supervises a command that runs under a lock.
type supervisor struct {
	app       *app
	lock      *holdfast.Lock
	options   *lockOptions
	child     *supervise.Child
	watchdog  *supervise.Watchdog
	margin    time.Duration // how long before the deadline the command is killed
	in        *signals
	done      chan struct{} // closed when the command has ended
	condemned atomic.Bool   // it was told to end because of the lease
	toStop    atomic.Bool   // SIGTSTP was passed on
}

// supervise runs the command for as long as the lease is kept, and takes over the signals. ctx is theirs. The error
// is nil or an exitError if the command ended by itself, ErrLost if it was ended because of the lease, and the
// cause of ctx if a signal came before the command was started. The lock is not released.
func (a *app) supervise(ctx context.Context, lock *holdfast.Lock, argv []string, o *lockOptions, in *signals) error {
	if err := in.take(ctx); err != nil {
		return err
	}
	// The command dies with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w := &supervisor{app: a, lock: lock, options: o, margin: killMargin(o.ttl), in: in, done: make(chan struct{})}
	var err error
	if w.watchdog, err = supervise.StartWatchdog(0, w.left()); err != nil {
		return err
	}
	tty := a.controlTerminal()
	var start func() error
	w.child, start, err = supervise.StartChild(argv, a.childEnv(lock, o.passBackend), a.stdio(), tty.fromStart())
	if err != nil {
		w.watchdog.Stop()
		return startError(argv[0], err)
	}
	// The watchdog reads this even if this process dies on the next line.
	w.watchdog.Guard(w.child.Pid)
	if err := start(); err != nil {
		a.warn("start the command: %v", err) // the child ends by itself
	}
	watched := make(chan struct{})
	go func() { defer close(watched); w.watch() }()
	status := w.await(tty)
	close(w.done)
	<-watched
	w.watchdog.Stop()
	if w.condemned.Load() && w.child.Foreign() {
		w.sayForeign()
	}
	switch lost := lock.Err(); {
	case lost != nil:
		return fmt.Errorf("the command was ended: %w", lost)
	case w.condemned.Load():
		return fmt.Errorf("the command was ended because %s: %w", w.reason(), holdfast.ErrLost)
	case status != exitOK:
		return exitError(status)
	}
	return nil
}

// killMargin is how long before the local deadline the command is killed. The local deadline
// already is before the end of the lease.
func killMargin(ttl time.Duration) time.Duration {
	return min(max(ttl/50, 20*time.Millisecond), 500*time.Millisecond)
}

// startError converts the failure to start a command to the exit status that a shell would use.
func startError(name string, err error) error {
	status := 126
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		status = 127
	}
	return &statusError{status: status, err: fmt.Errorf("%s: %w", name, err)}
}

// watch sends each new deadline to the watchdog, passes signals on, and ends the command when
// the lease cannot be kept.
func (w *supervisor) watch() {
	grace := w.options.grace
	lost := w.lock.Context().Done()
	warn := time.NewTimer(w.left() - grace)
	defer warn.Stop()
	kill := time.NewTimer(w.left())
	defer kill.Stop()
	gone := w.watchdog.Ended()
	for {
		select {
		case <-w.done:
			return
		case <-w.in.children:
			supervise.ReapOrphans(w.child.Pid, w.watchdog.Pid())
		case s := <-w.in.pass:
			w.passOn(s.(syscall.Signal)) //nolint:forcetypeassert // all signals of Unix are
		case <-w.lock.Renewed():
			if w.condemned.Load() {
				continue
			}
			w.watchdog.KillAfter(w.left())
			warn.Reset(w.left() - grace)
			kill.Reset(w.left())
		case <-warn.C:
			if w.left() > grace {
				continue
			}
			w.condemn(w.reason())
		case <-kill.C:
			w.condemned.Store(true)
			if errors.Is(w.child.Signal(syscall.SIGKILL), syscall.EPERM) {
				w.sayForeign()
			}
		case <-lost:
			lost = nil
			w.condemn(w.lock.Err().Error())
			// The next client may hold the lock already: there is no time left.
			kill.Reset(min(max(0, w.left()), grace, time.Second))
			w.watchdog.KillAfter(min(grace, time.Second))
		case <-gone:
			gone = w.replaceWatchdog()
		}
	}
}

// left returns the time until the command has to be dead.
func (w *supervisor) left() time.Duration { return time.Until(w.lock.Deadline()) - w.margin }

// passOn passes a signal that this process got on to the command.
func (w *supervisor) passOn(s syscall.Signal) {
	if s == syscall.SIGTSTP {
		w.toStop.Store(true)
	}
	_ = w.child.Signal(s)
	switch s { //nolint:exhaustive // these end a command, also a stopped one
	case syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT:
		_ = w.child.Signal(syscall.SIGCONT)
	}
}

// reason returns why the lock is about to end. If its renewals are acknowledged, it is not their fault.
func (w *supervisor) reason() string {
	if w.options.atMost > 0 && w.lock.State() == holdfast.StateHeld {
		return "it held the lock for as long as --at-most allows"
	}
	return "its lease could not be renewed"
}

// condemn tells the command to end because of the lease.
func (w *supervisor) condemn(why string) {
	w.condemned.Store(true)
	w.app.warn("ending the command: %s", why)
	w.passOn(syscall.SIGTERM)
}

// sayForeign reports processes that this one may not end. It continues to wait for a command that is one of them.
func (w *supervisor) sayForeign() {
	w.app.sayError(fmt.Errorf("the lock %q is lost, but processes of another user in the command's process group %d cannot be ended, and may run beside the next holder: end them", w.lock.Name(), w.child.Pid), exitLost)
}

// replaceWatchdog starts a new watchdog after the first one was killed, and returns what
// reports its end. Without a watchdog the command is not protected from failures of this
// process.
func (w *supervisor) replaceWatchdog() <-chan struct{} {
	dog, err := supervise.StartWatchdog(w.child.Pid, w.left())
	if err != nil {
		w.condemn(err.Error())
		return nil
	}
	w.watchdog.Stop() // closes the pipe
	w.watchdog = dog
	return dog.Ended()
}
