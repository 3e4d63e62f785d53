// Package helper has the main functions of the two processes with which a command is supervised. Both are this
// program again:
//
//   - The watchdog kills the command's process group when its deadline has come, also when the process that holds the
//     lock is stopped, is killed with -9, or hangs.
//   - The gate waits until the watchdog knows its process group, and becomes the command.
//
// They run in init. The language defines that a package is initialized as soon as those that it imports are, in the
// order of their paths. This package imports little, so what needs most of the time of a start, the initialization of
// the clients of the stores and of the server, does not happen in these processes. TestHelpersStartEarly watches over
// that: strconv and fmt are too much already.
package helper

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// The hidden subcommands, which are the first argument of the processes.
const (
	Watchdog = "internal-watchdog"
	Gate     = "internal-exec"
)

func init() { //nolint:gochecknoinits // see above
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case Watchdog:
		watch(os.Stdin)
		os.Exit(0)
	case Gate:
		os.Exit(gate(os.Args[2:]))
	}
}

// message is a message to the watchdog: its kind, and a number with the most significant byte first.
type message [9]byte

// The kinds of messages.
const (
	group = 'g' // the process group to kill
	until = 'u' // the reading of the clock of bootTime, in nanoseconds, at which to kill it, unless a later message arrives
)

func newMessage(kind byte, n int64) message {
	m := message{kind}
	for i := range 8 {
		m[i+1] = byte(n >> (56 - 8*i)) //nolint:gosec // one byte of eight
	}
	return m
}

func (m message) number() int64 {
	var n int64
	for _, b := range m[1:] {
		n = n<<8 | int64(b)
	}
	return n
}

// SendGroup tells the watchdog at the other end of w which process group it kills.
func SendGroup(w io.Writer, pid int) error { return send(w, newMessage(group, int64(pid))) }

// SendUntil makes the watchdog at the other end of w kill the group after d, unless a later message arrives.
func SendUntil(w io.Writer, d time.Duration) error {
	return send(w, newMessage(until, int64(bootTime()+d)))
}

func send(w io.Writer, m message) error {
	_, err := w.Write(m[:])
	return err
}

// watch is the watchdog. It is in a process group of its own, and does no I/O except on r. The end of r means that the
// holder died. A holder that needs its watchdog no longer kills it.
func watch(r io.Reader) {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGPIPE)
	messages := make(chan message)
	go func() {
		defer close(messages)
		var m message
		for {
			if _, err := io.ReadFull(r, m[:]); err != nil {
				return
			}
			messages <- m
		}
	}()
	pid, end := 0, time.Duration(0)
	// A timer does not count suspension: read the clock often enough.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	timer := time.NewTimer(time.Hour)
	for {
		select {
		case m, ok := <-messages:
			switch {
			case !ok:
				killGroup(pid)
				return
			case m[0] == group:
				pid = int(m.number())
			case m[0] == until:
				end = time.Duration(m.number())
				timer.Reset(max(0, end-bootTime()))
			}
		case <-timer.C:
		case <-tick.C:
		}
		if end > 0 && bootTime() >= end {
			killGroup(pid)
		}
	}
}

func killGroup(group int) {
	if group > 1 {
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
}

// gate is the process that becomes the command. Its arguments are the descriptor of a pipe, the path, and the arguments
// with the command's own name first. It executes the command when a byte arrives. When the pipe ends without one, the
// process that holds the lock is gone.
func gate(args []string) int {
	const closed, notFound, notExecutable = 71, 127, 126
	if len(args) < 3 {
		return closed
	}
	fd, path, argv := 0, args[1], args[2:]
	for _, digit := range []byte(args[0]) {
		fd = 10*fd + int(digit-'0')
	}
	pipe := os.NewFile(uintptr(fd), "gate")
	if n, err := pipe.Read(make([]byte, 1)); n != 1 {
		say(argv[0], err)
		return closed
	}
	_ = pipe.Close()
	err := syscall.Exec(path, argv, os.Environ()) //nolint:gosec // this is what it is for
	say(argv[0], err)
	if errors.Is(err, fs.ErrNotExist) {
		return notFound
	}
	return notExecutable
}

// say reports that a command was not started.
func say(name string, err error) {
	_, _ = os.Stderr.WriteString("holdfast: " + name + " was not started: " + err.Error() + "\n")
}
