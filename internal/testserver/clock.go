//go:build unix

package testserver

import (
	_ "embed"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"
)

//go:embed shim/clock.c
var clockShim []byte

// Clock is the wall clock of servers, which a test sets while they run: it jumps, as that of
// a machine does whose time is corrected. Their other clocks, and how long they sleep, stay
// as they are. It works in programs that ask the C library for the time: Redis, PostgreSQL,
// MariaDB and what runs in Java do; what is written in Go asks the kernel itself.
//
// A server with FakeTime has one. Its methods belong to the test's goroutine.
type Clock struct {
	t       testing.TB
	library string
	file    string // of the milliseconds that are added
}

// NewClock makes a clock that tells the time, until it jumps.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	dir := Dir(t)
	c := &Clock{t: t, library: filepath.Join(dir, "clock.so"), file: filepath.Join(dir, "ahead")}
	source := filepath.Join(dir, "clock.c")
	if err := os.WriteFile(source, clockShim, 0o600); err != nil {
		t.Fatalf("testserver: %v", err)
	}
	c.Set(0)
	build := Start(t, Command{Path: "gcc", Dir: dir, Args: []string{"-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", c.library, source}})
	build.wanted.Store(true)
	if err := build.Wait(startTimeout); err != nil {
		t.Fatalf("testserver: gcc: %v\n%s", err, build.Log())
	}
	// A server that runs as another user reads them.
	for path, mode := range map[string]os.FileMode{dir: 0o755, c.library: 0o755, c.file: 0o644} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatalf("testserver: %v", err)
		}
	}
	return c
}

// WithClock starts a server again, with a clock that the test sets, and gives both.
func WithClock[S interface{ FakeTime(c *Clock) }](t testing.TB, s S) (S, *Clock) {
	t.Helper()
	c := NewClock(t)
	s.FakeTime(c)
	return s, c
}

// Set makes the clock jump to so much ahead of the time; less than 0 is behind it.
func (c *Clock) Set(ahead time.Duration) {
	c.t.Helper()
	var text [8]byte
	binary.NativeEndian.PutUint64(text[:], uint64(ahead.Milliseconds())) //nolint:gosec // all bits count
	// The servers have the file in their memory: it stays the same one.
	f, err := os.OpenFile(c.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteAt(text[:], 0)
		_ = f.Close() // what was written is seen
	}
	if err != nil {
		c.t.Fatalf("testserver: clock: %v", err)
	}
}

// env is what a program needs to have this clock; that of no clock is nothing.
func (c *Clock) env() []string {
	if c == nil {
		return nil
	}
	return []string{"LD_PRELOAD=" + c.library, "CLOCK_SHIM=" + c.file}
}

// FakeTime starts the server again, with a clock that the test sets.
func (s *RedisServer) FakeTime(c *Clock) {
	s.t.Helper()
	s.clock = c
	s.Restart()
}

// FakeTime starts the server again, with a clock that the test sets.
func (s *PostgresServer) FakeTime(c *Clock) {
	s.t.Helper()
	s.clock = c
	s.Shutdown()
	s.Start()
}

// FakeTime starts the server again, with a clock that the test sets.
func (s *MariaDBServer) FakeTime(c *Clock) {
	s.t.Helper()
	s.clock = c
	s.Shutdown()
	s.Start()
}

// FakeTime starts the server again, with a clock that the test sets.
func (s *ZooKeeperServer) FakeTime(c *Clock) {
	s.t.Helper()
	s.clock = c
	s.Restart()
}
