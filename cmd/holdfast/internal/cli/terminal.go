package cli

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/holdfast-io/holdfast/cmd/holdfast/internal/cli/supervise"
)

// terminal returns the descriptor of the terminal that this process reads from and is in the
// foreground of, or -1 if there is none.
func (a *app) terminal() int {
	f, ok := a.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || foreground(int(f.Fd())) != syscall.Getpgrp() {
		return -1
	}
	return int(f.Fd())
}

// control describes the command's access to the terminal.
type control struct {
	tty int // -1: there is none
	// first: the command is in the foreground from the start. If a later command of a pipeline,
	// such as a pager, may need the keys, the command is put in the foreground only when it
	// reads from the terminal.
	first bool
}

// fromStart returns the terminal whose foreground the command is put in when it is started; -1: none.
func (t control) fromStart() int {
	if !t.first {
		return -1
	}
	return t.tty
}

func (a *app) controlTerminal() control {
	tty := a.terminal()
	return control{tty: tty, first: tty >= 0 && a.isTerminal(a.stdout)}
}

// foreground returns the process group in the foreground of the terminal, or 0 if it is not
// known.
func foreground(tty int) int {
	group, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// setForeground is for when the command runs already: it would inherit an ignored SIGTTOU.
func setForeground(tty, group int) {
	signal.Ignore(syscall.SIGTTOU) // it would stop a process that is now in the background
	_ = unix.IoctlSetPointerInt(tty, unix.TIOCSPGRP, group)
}

// await waits for the command. When the command was stopped at the terminal, this process stops
// too, so that the shell gets the terminal. The watchdog continues to count.
func (w *supervisor) await(t control) int {
	for {
		ws, err := w.child.Wait(w.condemned.Load)
		if err != nil {
			w.app.warn("%v", err)
			return exitInternal
		}
		if !ws.Stopped() {
			w.takeBack(t)
			return supervise.ExitStatus(ws)
		}
		w.stopped(t, ws.StopSignal())
	}
}

// stopped decides how to react to a stopped command.
func (w *supervisor) stopped(t control, by syscall.Signal) {
	ours := t.tty >= 0 && (foreground(t.tty) == syscall.Getpgrp() || foreground(t.tty) == w.child.Pid)
	switch {
	case ours && (by == syscall.SIGTTIN || by == syscall.SIGTTOU):
		// It needs the terminal, and may have it.
		setForeground(t.tty, w.child.Pid)
	case t.tty >= 0:
		w.takeBack(t)
		stop(0) // the whole job, for its shell
		if t.first && foreground(t.tty) == syscall.Getpgrp() {
			setForeground(t.tty, w.child.Pid)
		} // else it continues in the background
	case w.toStop.Swap(false):
		stop(os.Getpid())
	default:
		return // another process stopped it, and can continue it
	}
	_ = w.child.Signal(syscall.SIGCONT)
}

// stop stops this process, or its group if pid is 0, and returns when this process was continued. Kill may return before
// the signal has stopped all threads: without the wait the command would be continued right away.
func stop(pid int) {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	if os.Getpid() != 1 { // the kernel does not stop PID 1
		<-continued
	}
}

// takeBack puts this process into the foreground again, if the command was there.
func (w *supervisor) takeBack(t control) {
	if t.tty >= 0 && foreground(t.tty) == w.child.Pid {
		setForeground(t.tty, syscall.Getpgrp())
	}
}
