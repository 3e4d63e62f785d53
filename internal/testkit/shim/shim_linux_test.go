package shim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/shim"
)

// writeEnv names the file to which this program, started by TestDisk, writes.
const writeEnv = "HOLDFAST_SHIM_TEST_WRITE"

func TestMain(m *testing.M) {
	if path := os.Getenv(writeEnv); path != "" {
		if err := writeAndDie(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeAndDie writes "synced", syncs, writes "lost" behind it, as the servers do with a file of
// this name, and kills its process.
func writeAndDie(path string) error {
	flags := os.O_CREATE | os.O_WRONLY
	if filepath.Base(path) == "append.aof" {
		flags |= os.O_APPEND
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return err
	}
	write := f.Write
	switch filepath.Ext(path) {
	case ".wal":
		err = f.Truncate(16)
	case ".db":
		at := int64(0)
		write = func(b []byte) (int, error) { at += int64(len(b)); return f.WriteAt(b, at-int64(len(b))) }
	}
	_, err2 := write([]byte("synced"))
	err3 := f.Sync()
	_, err4 := write([]byte("lost"))
	if err := errors.Join(err, err2, err3, err4); err != nil {
		return err
	}
	return syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// What a program writes to its log after the last sync is lost when it is killed. Other files are
// on the machine's disk.
func TestDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	launcher, err := shim.NewLauncher(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := launcher.Try(t.Context(), dir, nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"append.aof": "synced", "1.aof": "synced", "0.wal": "synced\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "raft.db": "synced", "other": "syncedlost",
	} {
		disk := launcher.Disk(func(err error) { t.Error(err) })
		path := filepath.Join(dir, name)
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), writeEnv+"="+path)
		said := new(bytes.Buffer)
		cmd.Stderr = said
		attend, err := disk.Launch(cmd)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		if err := cmd.Run(); err == nil || said.Len() > 0 {
			t.Errorf("%s: %v, %s", name, err, said)
		}
		close(ended)
		attend(ended)
		if err := disk.Settle(); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != want || disk.Syncs() > 0 != (name != "other") {
			t.Errorf("%s has %q, %v, after %d syncs", name, text, err, disk.Syncs())
		}
	}
}

// A command that cannot be started leaves no goroutine, and the disk continues.
func TestDiskWithoutAProgram(t *testing.T) {
	t.Parallel()
	launcher, err := shim.NewLauncher(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	disk := launcher.Disk(func(err error) { t.Error(err) })
	cmd := exec.CommandContext(t.Context(), "true")
	cmd.Dir = filepath.Join(t.TempDir(), "none")
	attend, err := disk.Launch(cmd)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	if cmd.Start() == nil {
		t.Error("it was started in a folder that is not there")
	}
	close(ended)
	attend(ended)
	if err := disk.Settle(); err != nil {
		t.Error(err)
	}
}

func TestClock(t *testing.T) {
	t.Parallel()
	clocks, err := shim.NewClocks(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := clocks.Try(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// waits waits for a second until a time of its wall clock, on a condition of that clock and on one of
// the monotonic clock, and prints how many milliseconds each took.
const waits = `
#include <pthread.h>
#include <stdio.h>
#include <time.h>

static void wait_on(clockid_t id) {
	pthread_condattr_t a;
	pthread_cond_t c;
	pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
	struct timespec end, from, to;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, id);
	pthread_cond_init(&c, &a);
	clock_gettime(id, &end);
	end.tv_sec++;
	clock_gettime(CLOCK_MONOTONIC, &from);
	pthread_mutex_lock(&m);
	while (pthread_cond_timedwait(&c, &m, &end) == 0)
		;
	clock_gettime(CLOCK_MONOTONIC, &to);
	printf("%ld\n", (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000);
}

int main(void) {
	wait_on(CLOCK_REALTIME);
	wait_on(CLOCK_MONOTONIC);
	return 0;
}
`

// A wait until a time of a clock that is behind, or ahead, takes as long as with the true clock.
func TestClockOfWaits(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "waits")
	gcc := exec.CommandContext(t.Context(), "gcc", "-x", "c", "-o", program, "-", "-lpthread")
	gcc.Stdin = strings.NewReader(waits)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	clocks, err := shim.NewClocks(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, ahead := range map[string]time.Duration{"behind": -time.Hour, "ahead": time.Hour, "right": 0} {
		clock, err := clocks.Clock(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := clock.Set(ahead); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program)
		cmd.Env = append(os.Environ(), clock.Env()...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var took [2]int
		if n, err := fmt.Sscan(string(out), &took[0], &took[1]); n != 2 || took[0] < 990 || took[0] > 60_000 || took[1] < 990 || took[1] > 60_000 {
			t.Errorf("%s: waits of a second took %q ms, %v", name, out, err)
		}
	}
}

// What the machine cannot do is distinguished from a call that was interrupted.
func TestUnsupported(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	<-ctx.Done()
	if _, err := shim.NewLauncher(ctx, t.TempDir()); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, shim.ErrUnsupported) {
		t.Errorf("interrupted: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := shim.NewLauncher(t.Context(), t.TempDir()); !errors.Is(err, shim.ErrUnsupported) {
		t.Errorf("without gcc: %v", err)
	}
	if _, err := shim.NewClocks(t.Context(), t.TempDir()); !errors.Is(err, shim.ErrUnsupported) {
		t.Errorf("without gcc: %v", err)
	}
}
