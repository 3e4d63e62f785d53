package supervise

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/holdfast-io/holdfast/cmd/holdfast/internal/cli/supervise/helper"
)

// Watchdog is the holder's end of the watchdog. Its methods are for one goroutine.
type Watchdog struct {
	process *os.Process
	pipe    *os.File
	ended   chan struct{}
}

// StartWatchdog starts a watchdog that kills the process group after d. A group of 0 is none yet. What the watchdog has
// to know is in its pipe before it starts.
func StartWatchdog(group int, d time.Duration) (*Watchdog, error) {
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
	g := &Watchdog{pipe: w, ended: make(chan struct{})}
	g.Guard(group)
	g.KillAfter(d)
	g.process, err = os.StartProcess(thisProgram(), []string{"holdfast", helper.Watchdog}, &os.ProcAttr{
		Env:   []string{"PATH=" + os.Getenv("PATH")}, // no secrets
		Files: []*os.File{r, null, null},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the watchdog: %w", err), w.Close())
	}
	go func() {
		defer close(g.ended)
		_, _ = g.process.Wait()
	}()
	return g, nil
}

// Pid returns the ID of the process.
func (g *Watchdog) Pid() int { return g.process.Pid }

// Ended returns a channel that is closed when the process has ended.
func (g *Watchdog) Ended() <-chan struct{} { return g.ended }

// Guard names the process group that the watchdog kills. If the watchdog is gone, Ended reports that.
func (g *Watchdog) Guard(group int) {
	_ = g.pipe.SetWriteDeadline(time.Now().Add(time.Second))
	_ = helper.SendGroup(g.pipe, group)
}

// KillAfter makes the watchdog kill the group after d, instead of what an earlier call said. If the watchdog is gone,
// Ended reports that.
func (g *Watchdog) KillAfter(d time.Duration) {
	_ = g.pipe.SetWriteDeadline(time.Now().Add(time.Second))
	_ = helper.SendUntil(g.pipe, d)
}

// Stop ends the watchdog without killing the group.
func (g *Watchdog) Stop() {
	_ = g.process.Kill() // before the end of the pipe, on which it would kill the group
	_ = g.pipe.Close()
}
