package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// await waits until the condition holds.
func await(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %s: %s", within, what)
		case <-tick.C:
		}
	}
}

// 50 processes on one lock, each reading, adding one and writing without any other lock;
// readers among them never see a partial write.
func TestFiftyProcesses(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	url := sqliteURL(t)
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	for _, f := range []string{one, two} {
		if err := os.WriteFile(f, []byte("0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const writers, readers = 50, 10
	var wg sync.WaitGroup
	for i := range writers + readers {
		args := []string{"run", "counter", "--", "sh", "-c", `n=$(cat "$1"); echo $((n+1)) >"$1"; echo $((n+1)) >"$2"`, "sh", one, two}
		if i%6 == 5 {
			args = []string{"run", "--shared", "counter", "--", "sh", "-c", `test "$(cat "$1")" = "$(cat "$2")"`, "sh", one, two}
		}
		wg.Go(func() {
			if got := run(t, command(t, url, args...)); got.status != 0 {
				t.Errorf("%+v", got)
			}
		})
	}
	wg.Wait()
	if read(t, one) != strconv.Itoa(writers) || read(t, two) != strconv.Itoa(writers) {
		t.Errorf("counted %s and %s, want %d", read(t, one), read(t, two), writers)
	}
}

// --shared admits any number of readers, and with --limit 1 only one; without it --limit counts permits.
func TestLimits(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	url := sqliteURL(t)
	for _, tc := range []struct {
		name   string
		flags  []string
		status int
	}{
		{"readers", []string{"--shared"}, 0},
		{"three", []string{"--shared", "--limit", "3"}, 0},
		{"one", []string{"--shared", "--limit", "1"}, 75},
		{"two", []string{"--limit", "2"}, 0},
		{"two of three", []string{"--limit", "3", "--permits", "2"}, 75},
	} {
		inner := append([]string{binary, "run", "--try"}, append(tc.flags, tc.name, "--", "true")...)
		outer := append(append([]string{"run"}, tc.flags...), tc.name, "--")
		if got := run(t, command(t, url, append(outer, inner...)...)); got.status != tc.status {
			t.Errorf("%s, one inside another: %+v", tc.name, got)
		}
	}
}

// beating is a holder whose command, and a child of that, write the time repeatedly.
type beating struct {
	cmd  *exec.Cmd
	file string
}

// beat starts "holdfast run" with a command that ignores SIGTERM.
func beat(t *testing.T, url, ttl string) beating {
	t.Helper()
	file := filepath.Join(t.TempDir(), "beats")
	script := `trap '' TERM INT HUP
		(while :; do date +%s%N >>"$1"; sleep 0.01; done) &
		while :; do date +%s%N >>"$1"; sleep 0.01; done`
	b := beating{command(t, url, "run", "--ttl", ttl, "n", "--", "sh", "-c", script, "sh", file), file}
	b.cmd.Stderr = os.Stderr
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.cmd.Process.Kill() })
	await(t, 30*time.Second, "the command runs", func() bool { return read(t, file) != "" })
	return b
}

// last returns when the command was last seen alive, in nanoseconds.
func (b beating) last(t *testing.T) int64 {
	t.Helper()
	lines := strings.Fields(read(t, b.file))
	n, err := strconv.ParseInt(lines[len(lines)-1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// next acquires the lock and returns when its command began.
func next(t *testing.T, url string) int64 {
	t.Helper()
	got := run(t, command(t, url, "run", "--wait", "2m", "n", "--", "date", "+%s%N"))
	n, err := strconv.ParseInt(strings.TrimSpace(got.out), 10, 64)
	if err != nil || got.status != 0 {
		t.Fatalf("%v: %+v", err, got)
	}
	return n
}

// The end of --at-most is not reported as a renewal that failed.
func TestAtMostSaysSo(t *testing.T) {
	t.Parallel()
	got := run(t, command(t, sqliteURL(t), "run", "--at-most", "3s", "--grace", "1s", "n", "--", "sleep", "60"))
	if got.status != 70 || !strings.Contains(got.stderr, "--at-most") || strings.Contains(got.stderr, "renewed") {
		t.Errorf("%+v; want status 70 and a message that names --at-most", got)
	}
}

// F2: kill -9 of the holder: its command dies with all its children, and the next one has
// the lock soon after the TTL.
func TestHolderKilled(t *testing.T) {
	t.Parallel()
	for name, start := range backends() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := start(t)
			const ttl = 10 * time.Second
			b := beat(t, url, ttl.String())
			killed := time.Now()
			if err := b.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = b.cmd.Wait()
			began := next(t, url)
			const starts = 20 * time.Second // of a process, on a busy machine
			if after := time.Unix(0, began).Sub(killed); after > ttl+starts {
				t.Errorf("the next had the lock after %s", after)
			}
			if last := b.last(t); last >= began {
				t.Errorf("the old command was alive %s after the new one began", time.Duration(last-began))
			}
		})
	}
}

// F1: the holder is stopped past its TTL: its command is dead before the next one begins, and
// it exits with 70 when it continues.
func TestHolderStopped(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for name, start := range backends() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := start(t)
			b := beat(t, url, "10s")
			if err := b.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			began := next(t, url)
			if err := b.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			_ = b.cmd.Wait()
			if last := b.last(t); last >= began {
				t.Errorf("the old command was alive %s after the new one began", time.Duration(last-began))
			}
			if status := b.cmd.ProcessState.ExitCode(); status != 70 {
				t.Errorf("status %d, want 70", status)
			}
		})
	}
}

// F8: the backend hangs: the command is dead before another client can hold the lock.
func TestBackendHangs(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	redis := testserver.Redis(t)
	url := "redis://" + redis.Addr() + "?quarantine=off"
	b := beat(t, url, "10s")
	redis.Process().Stop()
	stopped := time.Now() // the last renewal came before
	_ = b.cmd.Wait()
	if after := time.Unix(0, b.last(t)).Sub(stopped); after > 18*time.Second { // its lease has 10 s, and the machine may be busy
		t.Errorf("the command was alive %s after its last renewal", after)
	}
	if status := b.cmd.ProcessState.ExitCode(); status != 70 {
		t.Errorf("status %d, want 70", status)
	}
	redis.Process().Cont()
	if began, last := next(t, url), b.last(t); last >= began {
		t.Errorf("the old command was alive %s after the new one began", time.Duration(last-began))
	}
}

// watchdogOf returns the process ID of the watchdog of a holder.
func watchdogOf(t *testing.T, holder int) int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		line, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		var pid, parent int
		rest := string(line[bytes.LastIndexByte(line, ')')+1:])
		if _, err := fmt.Sscan(string(line), &pid); err != nil {
			t.Fatal(err)
		}
		var state string
		if _, err := fmt.Sscan(rest, &state, &parent); err != nil {
			t.Fatal(err)
		}
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if parent == holder && strings.Contains(string(args), "watchdog") {
			return pid
		}
	}
	return 0
}

// The watchdog is killed: another one replaces it, and does its work.
func TestWatchdogKilled(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	url := sqliteURL(t)
	b := beat(t, url, "10s")
	first := watchdogOf(t, b.cmd.Process.Pid)
	if first == 0 {
		t.Fatal("there is no watchdog")
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, time.Minute, "another watchdog", func() bool {
		g := watchdogOf(t, b.cmd.Process.Pid)
		return g != 0 && g != first
	})
	if err := b.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if began, last := next(t, url), b.last(t); last >= began {
		t.Errorf("the old command was alive %s after the new one began", time.Duration(last-began))
	}
	_ = b.cmd.Process.Signal(syscall.SIGCONT)
	_ = b.cmd.Wait()
}

// An operator breaks the lock: the command is ended, with 70, and long before its lease would have ended.
func TestBrokenWhileRunning(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	b := beat(t, url, "5m")
	if got := run(t, command(t, url, "break", "n", "--reason", "test", "--yes")); got.status != 0 {
		t.Fatalf("%+v", got)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = b.cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the command was not ended")
	}
	if status := b.cmd.ProcessState.ExitCode(); status != 70 {
		t.Errorf("status %d, want 70", status)
	}
}

func TestSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ready")
	for s, want := range map[syscall.Signal]int{syscall.SIGTERM: 15, syscall.SIGINT: 2, syscall.SIGHUP: 1, syscall.SIGUSR1: 10, syscall.SIGUSR2: 12, syscall.SIGQUIT: 3} {
		_ = os.Remove(file)
		script := fmt.Sprintf(`trap 'exit %d' %d; touch "$1"; while :; do sleep 0.01; done`, 40+want, want)
		cmd := command(t, sqliteURL(t), "run", "n", "--", "sh", "-c", script, "sh", file)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		await(t, 30*time.Second, "the command runs", func() bool { _, err := os.Stat(file); return err == nil })
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if status := cmd.ProcessState.ExitCode(); status != 40+want {
			t.Errorf("%v: status %d, want the command's own, %d", s, status, 40+want)
		}
	}
}

// field returns the first value with that name in indented JSON.
func field(t *testing.T, text, name string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, `"`+name+`": `)
	if !ok {
		t.Fatalf("no %q in %s", name, text)
	}
	value, _, _ := strings.Cut(rest, "\n")
	return strings.Trim(value, `",`)
}
