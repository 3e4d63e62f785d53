package shim

import (
	"bytes"
	"context"
	_ "embed" // for the library
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed c/clock.c
var clockSource []byte

// Clocks creates clocks.
type Clocks struct{ dir, library string }

// NewClocks compiles the library of the clocks into a folder, which must exist as long as
// programs with these clocks run.
func NewClocks(ctx context.Context, dir string) (*Clocks, error) {
	library, err := build(ctx, dir, "clock.so", clockSource, "-shared", "-fPIC")
	if err != nil {
		return nil, err
	}
	return &Clocks{dir, library}, nil
}

// Try checks, with a clock an hour ahead, that a program with these attributes follows it. The
// error is ErrUnsupported if it does not.
func (c *Clocks) Try(ctx context.Context, attr *syscall.SysProcAttr) error {
	const ahead, late = time.Hour, time.Minute
	clock, err := c.Clock("try")
	if err == nil {
		err = clock.Set(ahead)
	}
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "date", "+%s")
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), clock.Env()...), attr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return fmt.Errorf("shim: try a clock: %w", context.Cause(ctx))
	}
	told, _ := strconv.ParseInt(string(bytes.TrimSpace(out)), 10, 64)
	if time.Until(time.Unix(told, 0)) < ahead-late {
		return fmt.Errorf("%w: a program does not take its time from a preloaded library: %w", ErrUnsupported, err)
	}
	return nil
}

// Clock is the wall clock of servers. It can be set while they run; it then jumps, like that of
// a machine whose time is corrected. Their other clocks, and how long they sleep, are
// unchanged. It works in programs that ask the C library for the time: Redis, PostgreSQL,
// MariaDB and programs that run in Java. Programs in Go ask the kernel, and are not affected.
type Clock struct{ library, file string }

// Clock creates a clock that shows the correct time until it is set. name distinguishes the
// clocks of one folder.
func (c *Clocks) Clock(name string) (*Clock, error) {
	clock := &Clock{library: c.library, file: filepath.Join(c.dir, name+".time")}
	if err := clock.Set(0); err != nil {
		return nil, err
	}
	return clock, readable(clock.file)
}

// Set makes the clock jump to the time plus ahead, in whole milliseconds. If ahead is below 0
// the clock is behind the time.
func (c *Clock) Set(ahead time.Duration) error {
	var text [8]byte
	binary.NativeEndian.PutUint64(text[:], uint64(ahead.Milliseconds())) //nolint:gosec // all bits count
	// The servers have the file mapped into memory, so it must not be replaced.
	f, err := os.OpenFile(c.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteAt(text[:], 0)
		_ = f.Close() // what was written is visible already
	}
	if err != nil {
		return fmt.Errorf("shim: set a clock: %w", err)
	}
	return nil
}

// Env returns the environment variables that a program needs in addition to follow this clock.
func (c *Clock) Env() []string {
	preload := c.library
	if more := os.Getenv("LD_PRELOAD"); more != "" {
		preload += ":" + more
	}
	return []string{"LD_PRELOAD=" + preload, "CLOCK_SHIM=" + c.file}
}

// In reports whether a process has loaded the clock. A statically linked program does not load
// it.
func (c *Clock) In(pid int) bool {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	return err == nil && strings.Contains(string(maps), c.library)
}
