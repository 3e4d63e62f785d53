package cli_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// The watchdog is killed and no other can be started: the command is ended within its lease,
// and holdfast with it.
func TestNoOtherWatchdog(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	url := sqliteURL(t)
	b := beat(t, url, "10s")
	watchdog := watchdogOf(t, b.cmd.Process.Pid)
	if watchdog == 0 {
		t.Fatal("there is no watchdog")
	}
	few := unix.Rlimit{Cur: 3, Max: 3} // descriptors: too few for another pipe
	if err := unix.Prlimit(b.cmd.Process.Pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(watchdog, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = b.cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("holdfast did not end")
	}
	if status := b.cmd.ProcessState.ExitCode(); status != 70 {
		t.Errorf("status %d, want 70", status)
	}
	if began, last := next(t, url), b.last(t); last >= began {
		t.Errorf("the old command was alive %s after the new one began", time.Duration(last-began))
	}
}

// A stopped command is still told to end.
func TestStoppedCommandIsTerminated(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	cmd := command(t, sqliteURL(t), "run", "--ttl", "5m", "n", "--", "sh", "-c", `echo $$ >"$0"; exec sleep 300`, file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, 30*time.Second, "the command runs", func() bool { return read(t, file) != "" })
	pid, err := strconv.Atoi(read(t, file))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("holdfast did not end")
	}
	if status := cmd.ProcessState.ExitCode(); status != 128+15 {
		t.Errorf("status %d, want 143", status)
	}
}

// Without any standard stream the command still runs, and gets none of holdfast's files.
func TestClosedStreams(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	file := filepath.Join(t.TempDir(), "out")
	script := `exec "$0" run n -- sh -c 'if read x; then echo read; fi; ls -l /proc/self/fd >"$1"; exit 3' sh "$1" <&- >&- 2>&-`
	cmd := command(t, url)
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", script, binary, file}
	if got := run(t, cmd); got.status != 3 || got.out != "" {
		t.Errorf("%+v", got)
	}
	if open := read(t, file); strings.Contains(open, "locks.db") || strings.Contains(open, "socket:") {
		t.Errorf("the command has\n%s", open)
	}
}

// A command that leaves a child in a session of its own ends when it exits: the lock is free,
// and the child is not touched.
func TestDaemonIsLeftAlone(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	file := filepath.Join(t.TempDir(), "daemon")
	begun := time.Now()
	got := run(t, command(t, url, "run", "n", "--", "sh", "-c", `setsid sh -c 'echo $$ >"$0"; exec sleep 300' "$1" >/dev/null 2>&1 </dev/null & while [ ! -s "$1" ]; do sleep 0.01; done`, "sh", file))
	if got.status != 0 || time.Since(begun) > time.Minute {
		t.Errorf("%+v after %s", got, time.Since(begun))
	}
	pid, err := strconv.Atoi(read(t, file))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the daemon is gone: %v", err)
	}
	if got := run(t, command(t, url, "run", "--try", "n", "--", "true")); got.status != 0 {
		t.Errorf("the lock is not free: %+v", got)
	}
}

// A lease that could not be printed is released.
func TestAcquireThatCannotTell(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"--json"}, {"--export"}} {
		url := sqliteURL(t)
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		cmd := command(t, url, append([]string{"acquire", "--ttl", "1h", "n"}, args...)...)
		cmd.Stdout = full
		if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("%v: %v", args, err)
		}
		full.Close()
		if got := run(t, command(t, url, "run", "--try", "n", "--", "true")); got.status != 0 {
			t.Errorf("%v: the lock is not free: %+v", args, got)
		}
	}
}

// Invalid input is refused with 64 and one line that names it; nothing is changed.
func TestAbsurdInput(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	state, marker := t.TempDir(), filepath.Join(t.TempDir(), "ran")
	touchIt := []string{"--", "touch", marker}
	long := strings.Repeat("n", 513)
	for _, c := range []struct {
		backend string
		args    []string
		want    string
	}{
		{url, append([]string{"run", ""}, touchIt...), "name"},
		{url, append([]string{"run", long}, touchIt...), "name"},
		{url, append([]string{"run", "a\nb"}, touchIt...), "name"},
		{url, append([]string{"run", "a//b"}, touchIt...), "name"},
		{url, append([]string{"run", "\xff"}, touchIt...), "name"},
		{url, append([]string{"run", "--ttl", "0s", "n"}, touchIt...), "ttl"},
		{url, append([]string{"run", "--ttl", "-1s", "n"}, touchIt...), "ttl"},
		{url, append([]string{"run", "--ttl", "1y", "n"}, touchIt...), "ttl"},
		{url, append([]string{"run", "--ttl", "30", "n"}, touchIt...), "ttl"},
		{url, append([]string{"run", "--ttl", "1ns", "n"}, touchIt...), "ttl"},
		{url, append([]string{"run", "--ttl", "2540400h", "n"}, touchIt...), "ttl"},
		{url, append([]string{"run", "--ttl", "9999999999h", "n"}, touchIt...), "ttl"},
		{url, append([]string{"run", "--wait", "-5s", "n"}, touchIt...), "wait"},
		{url, append([]string{"run", "--wait", "5s", "--try", "n"}, touchIt...), "try"},
		{url, append([]string{"run", "--limit", "0", "n"}, touchIt...), "limit"},
		{url, append([]string{"run", "--limit", "-1", "n"}, touchIt...), "limit"},
		{url, append([]string{"run", "--limit", "99999999999999999999", "n"}, touchIt...), "limit"},
		{url, append([]string{"run", "--limit", "2", "--permits", "3", "n"}, touchIt...), "permits"},
		{url, append([]string{"run", "--permits", "0", "n"}, touchIt...), "permits"},
		{url, append([]string{"run", "--permits", "2", "n"}, touchIt...), "permits"},
		{url, []string{"show", long}, "name"},
		{url, append([]string{"run", "--owner", strings.Repeat("o", 257), "n"}, touchIt...), "owner"},
		{url, append([]string{"run", "--owner", "a\x1b[31m", "n"}, touchIt...), "owner"},
		{url, append([]string{"run", "--note", "a\x07", "n"}, touchIt...), "note"},
		{url, append([]string{"run", "--at-least", "-1s", "n"}, touchIt...), "at"},
		{url, append([]string{"run", "--at-most", "-1s", "n"}, touchIt...), "at"},
		{url, append([]string{"run", "--grace", "20s", "n"}, touchIt...), "grace"},
		{url, append([]string{"run", "--grace", "-20s", "n"}, touchIt...), "grace"},
		{url, []string{"run", "n"}, "COMMAND"},
		{url, []string{"run", "n", "--"}, "COMMAND"},
		{url, []string{"run", "--", "touch", marker}, "NAME"},
		{url, []string{"acquire", "--lease", "x y", "n"}, "lease"},
		{url, []string{"acquire"}, "NAME"},
		{url, []string{"renew", "n"}, "LEASE"},
		{url, []string{"renew", "n", "lease-of-nobody-1", "--ttl", "-1s"}, "ttl"},
		{url, []string{"release", "n", "\x00"}, "lease"},
		{url, []string{"ls", "--limit", "-1"}, "limit"},
		{url, []string{"ls", "a\nb"}, "prefix"},
		{url, []string{"break", "n", "--yes"}, "reason"},
		{url, []string{"break", "n", "--yes", "--reason", strings.Repeat("r", 2000)}, "reason"},
		{url, []string{"nonsense"}, "nonsense"},
		{"", []string{"serve", "--data-dir", "x", "--backend", url}, "data-dir"},
		{url, []string{"serve", "--listen", "nowhere"}, "listen"},
		{url, []string{"serve", "--drain-delay", "-3s"}, "drain-delay"},
		{url, []string{"serve", "--max-ttl", "48h"}, "max-ttl"},
		{url, []string{"serve", "--listen", "127.0.0.1:99999"}, "listen"},
		{url, []string{"serve", "--listen", "0.0.0.0:0"}, "listen"},
		{url, []string{"serve", "--listen", ":0"}, "anonymous"},
		{url, []string{"serve", "--listen", ":0", "--insecure"}, "anonymous"},
		{url, []string{"serve", "--listen", ":0", "--anonymous"}, "insecure"},
		{url, []string{"serve", "--listen", ":0", "--anonymous", "--insecure"}, "host"},
		{url, []string{"serve", "--listen", ":0", "--policy", "x"}, "insecure"},
		{url, []string{"serve", "--listen", "myhost.invalid:0"}, "loopback"},
		{url, []string{"serve", "--listen", "myhost.invalid:0", "--policy", "x"}, "insecure"},
		{url, []string{"serve", "--listen", "myhost.invalid:0", "--policy", "x", "--insecure"}, "host"},
		{url, []string{"serve", "--listen", "localhost.invalid:0", "--policy", "x"}, "insecure"},
		{url, []string{"serve", "--listen", "127.0.0.1.invalid:0", "--policy", "x"}, "insecure"},
		{url, []string{"serve", "--host", "a,*."}, "wildcard"},
		{url, []string{"serve", "--host", "a.*.b"}, "wildcard"},
		{url, []string{"serve", "--listen", "unix:"}, "path"},
		{url, []string{"serve", "--policy", "x", "--anonymous"}, "anonymous"},
		{url, []string{"serve", "--tls-cert", "x"}, "tls-key"},
		{url, []string{"serve", "--tls-client-ca", "x"}, "tls-cert"},
		{url, []string{"serve", "--tls-cert", "x", "--tls-key", "y"}, "tls-cert"},
		{"nonsense", []string{"ls"}, "backend"},
		{"gopher://x", []string{"ls"}, "gopher"},
		{"sqlite://relative", []string{"ls"}, "backend"},
		{"sqlite:///x?colour=red", []string{"ls"}, "colour"},
		{"holdfast://127.0.0.1:7420?x=1", []string{"ls"}, "token_file"},
		{"holdfast://:secret@192.0.2.1", []string{"ls"}, "holdfasts"},
		{"holdfast://127.0.0.1:99999", []string{"ls"}, "port"},
		{"redis://127.0.0.1:1/notanumber", []string{"ls"}, ""},
		{"etcd://", []string{"ls"}, ""},
		{" ", []string{"ls"}, "backend"},
		{"%zz", []string{"ls"}, "backend"},
		{"://", []string{"ls"}, "backend"},
	} {
		if strings.ContainsRune(strings.Join(c.args, ""), 0) {
			continue // no argument of a process can contain it
		}
		cmd := command(t, c.backend, c.args...)
		cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+state)
		got := run(t, cmd)
		if got.status != 64 || !strings.Contains(strings.ToLower(got.stderr), strings.ToLower(c.want)) || got.out != "" {
			t.Errorf("%s %.60q: status %d, out %.80q, stderr %.300q; want 64 and a word about %q", c.backend, c.args, got.status, got.out, got.stderr, c.want)
		}
		if n := strings.Count(got.stderr, "\n"); n > 2 {
			t.Errorf("%.60q: %d lines of error: %s", c.args, n, got.stderr)
		}
		for _, r := range got.stderr {
			if r < ' ' && r != '\n' {
				t.Errorf("%.60q: the error has the control character %q", c.args, r)
			}
		}
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("a command was run")
	}
	if _, err := os.Stat(filepath.Join(state, "holdfast", "serve")); err == nil {
		t.Error("serve made its folder")
	}
	if got := run(t, command(t, url, "ls")); got.status != 0 || got.out != "" {
		t.Errorf("locks were left: %+v", got)
	}
	if got := run(t, command(t, url, "run", "n", "--", "/nowhere/at/all")); got.status != 127 {
		t.Errorf("%+v", got)
	}
}
