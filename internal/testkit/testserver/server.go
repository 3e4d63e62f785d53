//go:build unix

package testserver

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
)

// server is one of any kind. Its methods fail the test when they fail; they belong to the test's
// goroutine.
type server struct {
	*launch.Server
	t    testing.TB
	proc *Process
}

// timed is a server whose clock can be set: it loads the C library.
type timed struct{ server }

// started starts a server for the first time.
func started(t testing.TB, s *launch.Server, err error) server {
	t.Helper()
	check(t, err)
	out := server{Server: s, t: t}
	out.Start()
	return out
}

// launched starts servers that need each other.
func launched(t testing.TB, all []*launch.Server, err error) []server {
	t.Helper()
	check(t, err)
	out := make([]server, len(all))
	for i, s := range all {
		out[i] = server{Server: s, t: t}
		out[i].launch()
	}
	for i := range out {
		out[i].await()
	}
	return out
}

// options are those of a server in a folder of its own.
func options(t testing.TB, args ...string) launch.Options {
	t.Helper()
	return launch.Options{Dir: Dir(t), Args: args}
}

func (s *server) launch() {
	s.t.Helper()
	check(s.t, s.Launch())
	s.proc = adopt(s.t, s.Server.Process())
}

func (s *server) await() {
	s.t.Helper()
	check(s.t, s.Ready(s.t.Context()))
}

// patience bounds a call to a server, also at the end of the test.
func (s *server) patience() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(s.t.Context()), startTimeout)
}

// Process is the current run, to be killed, stopped and continued.
func (s *server) Process() *Process { return s.proc }

// Start starts a server that was ended again, with its data.
func (s *server) Start() {
	s.t.Helper()
	s.launch()
	s.await()
}

// Kill ends the server, and everything that it started, with SIGKILL. Start starts it again.
func (s *server) Kill() {
	s.t.Helper()
	check(s.t, s.Server.Kill())
}

// Shutdown ends the server as its operator would in a hurry: PostgreSQL and MariaDB end all
// connections. Start starts it again.
func (s *server) Shutdown() {
	s.t.Helper()
	check(s.t, s.Server.Shutdown())
}

// Restart kills the server with SIGKILL and starts it again on the same address, with its data.
func (s *server) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

func (s *server) setDisk(d *SlowDisk) { s.Disk = d.Disk }

func (s *timed) setClock(c *Clock) { s.Clock = c.clock }

// again starts the server again, with another disk or clock.
func (s *server) again() {
	s.t.Helper()
	s.Shutdown()
	s.Start()
}

const buildTimeout = 15 * time.Minute

// Tool is the path of a program that the repository builds: "consul", "kube-apiserver".
func Tool(t testing.TB, name string) string {
	t.Helper()
	return built(t, name)
}

// Holdfast builds our own command, with the race detector if the test has it.
func Holdfast(t testing.TB) string {
	t.Helper()
	var flags []string
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		flags = append(flags, "-race")
	}
	return built(t, "holdfast", flags...)
}

func built(t testing.TB, name string, flags ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), buildTimeout)
	defer cancel()
	path, err := launch.Built(ctx, name, flags...)
	check(t, err)
	return path
}

// tool is a table for [launch.Options.Programs].
func tool(t testing.TB, name string) map[string][]string {
	t.Helper()
	return map[string][]string{name: {Tool(t, name)}}
}

// Copy copies the data of a server that is down for that time, as a backup of the folder does. The
// result puts the copy back.
func (s *timed) Copy() func() {
	s.t.Helper()
	data, copied := s.Path("data"), filepath.Join(Dir(s.t), "data")
	move := func(from, to string) {
		s.t.Helper()
		s.Shutdown()
		check(s.t, os.RemoveAll(to))
		out, err := exec.CommandContext(s.t.Context(), "cp", "-a", from, to).CombinedOutput() //nolint:gosec // the folders are the test's
		if err != nil {
			s.t.Fatalf("testserver: copy %s: %v: %s", from, err, out)
		}
		s.Start()
	}
	move(data, copied)
	return func() {
		s.t.Helper()
		move(copied, data)
	}
}
