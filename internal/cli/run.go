package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-io/holdfast"
)

func (a *app) runCommand() *cobra.Command {
	var o lockOptions
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "run [flags] NAME -- COMMAND [ARG...]",
		Short: "Run a command under a lock",
		Long: `Run a command while holding a lock, and release the lock when the command has ended.

The lease is renewed while the command runs. If it cannot be kept, the command's process
group gets SIGTERM early enough (see --grace), and SIGKILL before the lock can be granted
to another client. A local timer in a separate process does this, even if the backend
hangs or holdfast itself is stopped or killed.

The command's environment has HOLDFAST_LOCK, HOLDFAST_TOKEN and HOLDFAST_LEASE. Send the
token with every write, and let the resource refuse a smaller one. It has HOLDFAST_BACKEND
only if that has no password, or with --pass-backend.

Signals are passed on to the command. It runs in its own process group, in the
foreground if there is a terminal. Ctrl-Z, fg and bg work as for any command, but a
stopped holdfast renews nothing, and the command is killed when the lease ends. Children
that are still running when the command exits are left alone, as by a shell, and the lock
is released. A child that starts its own session (setsid), and a process that runs as
another user, cannot be killed and may outlive the lease: send the token with its writes,
and write "sudo holdfast run NAME -- COMMAND" with sudo before holdfast.

If holdfast and the separate process are killed at once, the kernel kills the command on
Linux, but not its children; on macOS and the BSDs neither. As the first process of a
container, holdfast reaps orphans, and no process of the container outlives it.
On OpenBSD and NetBSD there is no local file: give --backend.

Exit status: the command's own, or 128 plus the signal that ended it; 75 if the lock could
not be acquired, 74 if the backend was unavailable, 70 if the lock was lost, 64 for bad
usage, 126 and 127 if the command cannot be run or does not exist.`,
		Example: `  holdfast run nightly-report -- ./report.sh
  holdfast run --try backup -- rsync -a /srv /backup      # not if it runs already
  holdfast run --wait 1m --limit 3 downloads -- ./fetch.sh   # at most three at the same time
  holdfast run --shared dataset -- ./read.sh               # together with other readers
  holdfast run --at-least 50s cron-job -- ./job.sh         # once in the fleet, although clocks differ`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash != 1 || len(args) < 2 {
				return usageError("run", "want NAME -- COMMAND [ARG...]")
			}
			return nil
		},
		ValidArgsFunction: a.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.elect(cmd.Context(), args[0], args[1:], &o, grace, true)
		},
	}
	o.add(cmd)
	cmd.Annotations = map[string]string{ownSignals: "a signal is passed on to the command"}
	addGrace(cmd, &grace, &o.ttl)
	o.addPassBackend(cmd)
	return cmd
}

// addGrace adds the flag --grace.
func addGrace(cmd *cobra.Command, grace, ttl *time.Duration) {
	cmd.Flags().DurationVar(grace, "grace", 0, "time between SIGTERM and SIGKILL when the lease cannot be kept (default: a quarter of the TTL, at most 5s)")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if !cmd.Flags().Changed("grace") {
			*grace = min(*ttl/4, 5*time.Second)
		} else if *grace < 0 {
			return usageError("grace", "%s: must be 0s or more", *grace)
		}
		if *ttl <= 0 {
			return usageError("ttl", "%s: must be above 0s", *ttl)
		}
		if *grace >= *ttl/2 {
			return usageError("grace", "%s: must be under half of the TTL, %s", *grace, *ttl)
		}
		return nil
	}
}

// runOnce takes the lock, runs the command and releases the lock. The error is ErrLost when the
// command was ended because of the lease.
func (a *app) runOnce(ctx context.Context, client *holdfast.Client, name string, argv []string, opts []holdfast.AcquireOption,
	o *lockOptions, grace time.Duration, in incoming,
) error {
	lock, err := a.acquireOrSignal(ctx, client, name, opts, in)
	if err != nil {
		return err
	}
	status, err := a.supervise(lock, argv, o, grace, in)
	if err != nil {
		_ = lock.Release(context.WithoutCancel(ctx))
		return err
	}
	if lost := lock.Err(); lost != nil {
		return fmt.Errorf("the command was ended: %w", lost)
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := lock.Release(release); err != nil {
		a.warn("%v", err)
	}
	if status != 0 {
		return exitError(status)
	}
	return nil
}

// acquireOrSignal waits for the lock until a signal ends the wait.
func (a *app) acquireOrSignal(ctx context.Context, c *holdfast.Client, name string, opts []holdfast.AcquireOption, in incoming) (*holdfast.Lock, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var got atomic.Int64
	quit := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		notice := time.NewTimer(time.Second)
		defer notice.Stop()
		for {
			select {
			case <-in.children:
				reapOrphans()
			case s := <-in.signals:
				n, _ := s.(syscall.Signal)
				if ends(n) {
					got.Store(int64(n))
					cancel()
					return
				}
				if n == syscall.SIGTSTP {
					_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // it would have stopped this process
				}
			case <-notice.C:
				a.tellHolder(ctx, c, name)
			case <-quit:
				return
			}
		}
	}()
	lock, err := c.Acquire(ctx, name, opts...)
	close(quit)
	cancel() // does not end the lock
	<-watched
	if n := got.Load(); n != 0 {
		if err == nil {
			_ = lock.Release(context.WithoutCancel(ctx))
		}
		return nil, exitError(128 + n)
	}
	return lock, err
}

// tellHolder reports on a terminal which holder the command waits for.
func (a *app) tellHolder(ctx context.Context, c *holdfast.Client, name string) {
	if !a.isTerminal(a.stderr) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second) // signals are not handled during this call
	defer cancel()
	info, err := c.Inspect(ctx, name)
	if err != nil || len(info.Holders) == 0 {
		return
	}
	h := info.Holders[0]
	a.warn("waiting for %q, held by %s since %s", name, h.Owner, h.Since.Local().Format(time.TimeOnly))
}

// incoming are the signals that this process gets.
type incoming struct {
	signals  <-chan os.Signal // to pass on to the command
	children <-chan os.Signal // a child has ended, perhaps an orphan: see reapOrphans
}

// mindSignals returns the incoming signals, until the returned function is called. The command ignores the signals that
// are ignored here.
func mindSignals() (incoming, func()) {
	signals, children := make(chan os.Signal, 16), make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	signal.Notify(signals, minded(
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGALRM,
	)...)
	surviveUnread()
	return incoming{signals, children}, func() { signal.Stop(signals); signal.Stop(children) }
}

func ends(s syscall.Signal) bool {
	return slices.Contains([]syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}, s)
}

// supervise runs the command as long as the lease is kept. It returns an error for a command
// that could not be started, or for a lock that was lost.
func (a *app) supervise(lock *holdfast.Lock, argv []string, o *lockOptions, grace time.Duration, in incoming) (int, error) {
	// The command dies with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g, err := startWatchdog()
	if err != nil {
		return 0, err
	}
	margin := killMargin(o.ttl)
	g.tell("until", int64(bootTime()+time.Until(lock.Deadline())-margin))
	tty := a.controlTerminal()
	c, start, err := startChild(argv, a.childEnv(lock, o.passBackend), a.stdio(), tty)
	if err != nil {
		g.bye()
		return 0, startError(argv[0], err)
	}
	// The watchdog reads this even if this process dies on the next line.
	g.tell("group", int64(c.pid))
	if err := start(); err != nil {
		a.warn("start the command: %v", err) // the child ends by itself
	}
	w := &supervisor{app: a, lock: lock, atMost: o.atMost > 0, child: c, watchdog: g, margin: margin, grace: grace, in: in, done: make(chan struct{})}
	watched := make(chan struct{})
	go func() { defer close(watched); w.watch() }()
	status := w.await(tty)
	close(w.done)
	<-watched
	w.watchdog.bye()
	if w.condemned.Load() {
		if c.foreign() {
			w.sayForeign()
		}
		if err := lock.Err(); err != nil {
			return status, fmt.Errorf("the command was ended: %w", err)
		}
		return status, fmt.Errorf("the command was ended because %s: %w", w.reason(), holdfast.ErrLost)
	}
	return status, nil
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

// supervisor supervises a command that runs under a lock.
type supervisor struct {
	app       *app
	lock      *holdfast.Lock
	atMost    bool // --at-most is given
	child     *child
	watchdog  *watchdog
	margin    time.Duration
	grace     time.Duration
	in        incoming
	done      chan struct{} // closed when the command has ended
	condemned atomic.Bool   // it was told to end because of the lease
	toStop    atomic.Bool   // SIGTSTP was passed on
}

// watch sends each new deadline to the watchdog, passes signals on, and ends the command when
// the lease cannot be kept.
func (w *supervisor) watch() {
	lost := w.lock.Context().Done()
	warn := time.NewTimer(w.left() - w.grace)
	defer warn.Stop()
	kill := time.NewTimer(w.left())
	defer kill.Stop()
	var gone <-chan struct{} = w.watchdog.ended
	for {
		select {
		case <-w.done:
			return
		case <-w.in.children:
			reapOrphans(w.child.pid, w.watchdog.process.Pid)
		case s := <-w.in.signals:
			if n, ok := s.(syscall.Signal); ok {
				if n == syscall.SIGTSTP {
					w.toStop.Store(true)
				}
				_ = w.child.signal(n)
				if n == syscall.SIGTERM || n == syscall.SIGHUP {
					_ = w.child.signal(syscall.SIGCONT) // a stopped command gets it too
				}
			}
		case <-w.lock.Renewed():
			if w.condemned.Load() {
				continue
			}
			w.watchdog.tell("until", int64(bootTime()+w.left()))
			warn.Reset(w.left() - w.grace)
			kill.Reset(w.left())
		case <-warn.C:
			if w.left() > w.grace {
				continue
			}
			w.condemn(w.reason())
		case <-kill.C:
			w.condemned.Store(true)
			if errors.Is(w.child.signal(syscall.SIGKILL), syscall.EPERM) {
				w.sayForeign()
			}
		case <-lost:
			lost = nil
			w.condemn(w.lock.Err().Error())
			// The next client may hold the lock already: there is no time left.
			kill.Reset(min(max(0, w.left()), w.grace, time.Second))
			w.watchdog.tell("until", int64(bootTime()+min(w.grace, time.Second)))
		case <-gone:
			gone = w.replaceWatchdog()
		}
	}
}

// left returns the time until the command has to be dead.
func (w *supervisor) left() time.Duration { return time.Until(w.lock.Deadline()) - w.margin }

// reason returns why the lock is about to end. If its renewals are acknowledged, it is not their fault.
func (w *supervisor) reason() string {
	if w.atMost && w.lock.State() == holdfast.StateHeld {
		return "it held the lock for as long as --at-most allows"
	}
	return "its lease could not be renewed"
}

func (w *supervisor) condemn(why string) {
	w.condemned.Store(true)
	w.app.warn("ending the command: %s", why)
	_ = w.child.signal(syscall.SIGTERM)
	_ = w.child.signal(syscall.SIGCONT) // a stopped command gets the SIGTERM too
}

// sayForeign reports processes that this one may not end. It continues to wait for a command that is one of them.
func (w *supervisor) sayForeign() {
	w.app.sayError(fmt.Errorf("the lock %q is lost, but processes of another user in the command's process group %d cannot be ended, and may run beside the next holder: end them", w.lock.Name(), w.child.pid), exitLost)
}

// replaceWatchdog starts a new watchdog after the first one was killed, and returns what
// reports its end. Without a watchdog the command is not protected from failures of this
// process.
func (w *supervisor) replaceWatchdog() <-chan struct{} {
	g, err := startWatchdog(w.child.pid)
	if err != nil {
		w.condemn(err.Error())
		return nil
	}
	w.watchdog.forget()
	w.watchdog = g
	g.tell("until", int64(bootTime()+w.left()))
	return g.ended
}
