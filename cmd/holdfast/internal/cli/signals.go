package cli

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast/cmd/holdfast/internal/cli/supervise"
)

// signals are the signals that this process gets while it waits for a lock and runs a command under it. While no
// command runs, the goroutine of wait receives them, and otherwise the supervisor.
type signals struct {
	pass     chan os.Signal // to pass on to the command
	children chan os.Signal // a child has ended, perhaps an orphan, where this process adopts orphans
	end      context.CancelCauseFunc
	turn     chan struct{} // passes the turn to receive signals on, in both directions
}

// handleSignals returns the signals, and a context that ends with the exit status of a signal that would end the
// process. waiting is called after a second without the lock. The command ignores the signals that are
// ignored here.
func handleSignals(ctx context.Context, waiting func(context.Context)) (context.Context, *signals) {
	pass, children := make(chan os.Signal, 16), make(chan os.Signal, 1)
	if supervise.AdoptsOrphans() {
		signal.Notify(children, syscall.SIGCHLD)
	}
	signal.Notify(pass, minded(
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGALRM,
	)...)
	surviveUnread()
	ctx, end := context.WithCancelCause(ctx)
	s := &signals{pass: pass, children: children, end: end, turn: make(chan struct{})}
	go s.wait(ctx, waiting)
	return ctx, s
}

// wait handles the signals while no command runs.
func (s *signals) wait(ctx context.Context, waiting func(context.Context)) {
	const soon = time.Second
	notice := time.NewTimer(soon)
	defer notice.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case s.turn <- struct{}{}: // to a supervisor
			select {
			case <-s.turn:
				notice.Reset(soon)
			case <-ctx.Done():
				return
			}
		case <-notice.C:
			waiting(ctx)
		case <-s.children:
			supervise.ReapOrphans()
		case got := <-s.pass:
			n, _ := got.(syscall.Signal)
			switch {
			case slices.Contains([]syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}, n):
				s.end(exitError(128 + int(n)))
			case n == syscall.SIGTSTP:
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // it would have stopped this process
			}
		}
	}
}

// take makes the caller the one that receives the signals. The error is the cause of ctx, the context of the
// signals: a signal that came before has ended it, none that comes later does.
func (s *signals) take(ctx context.Context) error {
	select {
	case <-s.turn:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

// giveBack ends what take began, before another wait for the lock.
func (s *signals) giveBack(ctx context.Context) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
	}
}

// stop ends the handling of the signals.
func (s *signals) stop() {
	s.end(nil)
	signal.Stop(s.pass)
	signal.Stop(s.children)
}

// ownSignals is the annotation of a command that handles signals itself.
const ownSignals = "signals"

// interruptible cancels the context at a signal that would end the process, so that a waiter
// leaves the queue and everything that was opened is closed. The exit status is that of a
// process that the signal ended.
func interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, minded(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)...)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals) // a second signal ends the process
			if n, ok := s.(syscall.Signal); ok {
				cancel(exitError(128 + int(n)))
			}
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}

// minded returns those of the signals that were not ignored when this process was started, as
// nohup, or the & of a script, ignores them. Handling an ignored signal would act on one that
// is not meant for this process.
func minded(signals ...os.Signal) []os.Signal { return slices.DeleteFunc(signals, signal.Ignored) }

// surviveUnread keeps this process alive, from here to its end, when it writes and its standard
// output or error has no reader any more: the lock that it holds is worth more. The commands
// that it starts are still ended by SIGPIPE.
func surviveUnread() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
