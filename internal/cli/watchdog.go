package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The watchdog is a second process of the command, in a group of its own. It kills the
// command's group when the lease can no longer be kept, also when the process that holds the
// lock is stopped, is killed with -9, or hangs. It does no I/O except on its pipe:
//
//	group N      the process group to kill
//	until NS     kill at this reading of the clock of bootTime, unless a later message arrives
//	bye          the command has ended; kill nothing
//
// The end of the pipe without a bye means that the holder died.

// watchdogCommand is the hidden subcommand with which the program starts itself as the watchdog.
const watchdogCommand = "internal-watchdog"

// readClock reads a clock of the system; see bootTime.
func readClock(id int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// runWatchdog is the watchdog's main function. It reads messages from r until the pipe ends. A
// watchdog that replaces another gets the group as its argument: it must know it from the
// start.
func runWatchdog(r io.Reader, args []string) int {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGPIPE)
	words := make(chan string)
	go func() {
		defer close(words)
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			words <- lines.Text()
		}
	}()
	group, until := 0, time.Duration(0)
	if len(args) > 0 {
		group, _ = strconv.Atoi(args[0])
	}
	// A timer does not count suspension: read the clock often enough.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	timer := time.NewTimer(time.Hour)
	for {
		select {
		case word, ok := <-words:
			if !ok {
				killGroup(group)
				return 0
			}
			verb, arg, _ := strings.Cut(word, " ")
			n, err := strconv.ParseInt(arg, 10, 64)
			switch {
			case verb == "bye":
				return 0
			case err != nil:
				killGroup(group)
				return exitInternal
			case verb == "group":
				group = int(n)
			case verb == "until":
				until = time.Duration(n)
			}
			timer.Reset(max(0, until-bootTime()))
		case <-timer.C:
		case <-tick.C:
		}
		if until > 0 && bootTime() >= until {
			killGroup(group)
		}
	}
}

func killGroup(group int) {
	if group > 1 {
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
}

// watchdog is the holder's end of the pipe.
type watchdog struct {
	process *os.Process
	ended   chan struct{}

	mu   sync.Mutex
	pipe *os.File
}

// startWatchdog runs this program again as the watchdog, of the given group if there is one
// already.
func startWatchdog(group ...int) (*watchdog, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer r.Close() //nolint:errcheck // the watchdog has its own
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	defer null.Close() //nolint:errcheck // the watchdog has its own
	args := []string{"holdfast", watchdogCommand}
	for _, g := range group {
		args = append(args, strconv.Itoa(g))
	}
	p, err := os.StartProcess(thisProgram(), args, &os.ProcAttr{
		Env:   []string{"PATH=" + os.Getenv("PATH")}, // no secrets
		Files: []*os.File{r, null, null},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the watchdog: %w", err), w.Close())
	}
	g := &watchdog{process: p, pipe: w, ended: make(chan struct{})}
	go func() {
		defer close(g.ended)
		_, _ = p.Wait()
	}()
	return g, nil
}

// tell sends a message. If the watchdog is gone, ended reports that.
func (g *watchdog) tell(verb string, n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe != nil {
		_ = g.pipe.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = fmt.Fprintf(g.pipe, "%s %d\n", verb, n)
	}
}

// forget closes the pipe of a watchdog that has ended.
func (g *watchdog) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.pipe.Close()
	g.pipe = nil
}

// bye ends the watchdog without killing anything.
func (g *watchdog) bye() {
	g.tell("bye", 0)
	g.forget()
	select {
	case <-g.ended:
	case <-time.After(time.Second):
		_ = g.process.Kill()
		<-g.ended
	}
}
