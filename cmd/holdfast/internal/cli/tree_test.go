package cli_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// asPID1 makes the command the first process of a PID namespace, as in a container.
func asPID1(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	args := []string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Geteuid() != 0 {
		args = append(args, "--map-root-user")
	}
	path, err := exec.LookPath("unshare")
	if err != nil {
		t.Fatal(err)
	}
	probe := exec.CommandContext(t.Context(), path, append(args[1:], "true")...)
	if out, err := probe.CombinedOutput(); err != nil && os.Geteuid() != 0 {
		t.Skipf("this user may not make namespaces: %v: %s", err, out)
	} else if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd.Path, cmd.Args = path, append(append(args, cmd.Path), cmd.Args[1:]...)
}

// As PID 1 run reaps orphans, and does not take the status of its own command.
func TestReapsAsPID1(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ended")
	script := `for i in $(seq 30); do (sh -c 'echo >>"$0"' "$1" &); done
		for i in $(seq 600); do
			test "$(wc -l <"$1")" -eq 30 && ! grep -qs ') Z 1 ' /proc/[0-9]*/stat && exit 7
			sleep 0.1
		done
		grep -s ') Z ' /proc/[0-9]*/stat | wc -l; exit 1`
	cmd := command(t, sqliteURL(t), "run", "n", "--", "sh", "-c", script, "sh", file)
	asPID1(t, cmd)
	if got := run(t, cmd); got.status != 7 {
		t.Errorf("%+v; want status 7 and no zombies", got)
	}
}

// Both holdfast and its watchdog are killed: the kernel kills the command. As PID 1, holdfast takes also the children of
// the command with it.
func TestBothSupervisorsKilled(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	t.Run("command", func(t *testing.T) {
		t.Parallel()
		b, script, _ := beats(t)
		cmd := command(t, sqliteURL(t), append([]string{"run", "--ttl", "5m", "n", "--"}, strings.Fields(script)...)...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		b.begun(t)
		for _, pid := range []int{watchdogOf(t, cmd.Process.Pid), cmd.Process.Pid} {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		_ = cmd.Wait()
		pid := number(t, b.file+".pid")
		await(t, time.Minute, "the command is dead", func() bool { return !alive(t, pid) })
	})
	t.Run("children", func(t *testing.T) {
		t.Parallel()
		url := sqliteURL(t)
		b, script, _ := beats(t)
		cmd := command(t, url, "run", "--ttl", "10s", "n", "--", "sh", "-c", script+"; echo done")
		asPID1(t, cmd)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		b.begun(t)
		if err := cmd.Process.Kill(); err != nil { // --kill-child: the namespace's PID 1 too
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if began, last := next(t, url), b.last(t); last >= began {
			t.Errorf("the old command was alive %s after the new one began", time.Duration(last-began))
		}
	})
}

// number reads a file that has a number.
func number(t *testing.T, path string) int {
	t.Helper()
	n, err := strconv.Atoi(read(t, path))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// alive reports whether a process runs or is stopped.
func alive(t *testing.T, pid int) bool {
	t.Helper()
	_, state, ok := strings.Cut(read(t, fmt.Sprintf("/proc/%d/stat", pid)), ") ")
	return ok && !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// A command, or a child of it, runs as another user, as with sudo, when the lock is broken: it cannot be ended, and holdfast
// says so.
func TestCommandOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can make a program that changes its user")
	}
	dir := t.TempDir()
	up, holdfast := filepath.Join(dir, "up"), filepath.Join(dir, "holdfast")
	const source = `#include <unistd.h>
		int main(int c, char **v) { return setresgid(0, 0, 0) || setresuid(0, 0, 0) || execvp(v[1], v + 1); }`
	compile := exec.CommandContext(t.Context(), "gcc", "-D_GNU_SOURCE", "-x", "c", "-o", up, "-")
	compile.Stdin = strings.NewReader(source)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, err := range []error{
		os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o777), os.Chmod(up, 0o755|os.ModeSetuid), os.Link(binary, holdfast),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	url := "redis://" + testserver.Redis(t).Addr() + "?quarantine=off"
	for name, script := range map[string]string{
		"command": `exec "$1" sh -c 'echo $$ >"$0"; exec sleep 300' "$2"`,
		"child":   `"$1" sh -c 'echo $$ >"$0"; exec sleep 300' "$2"; :`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, said := filepath.Join(dir, name+".pid"), filepath.Join(dir, name+".stderr")
			stderr, err := os.Create(said)
			if err != nil {
				t.Fatal(err)
			}
			defer stderr.Close()
			cmd := command(t, url, "--quiet", "run", "--ttl", "5m", name, "--", "sh", "-c", script, "sh", up, file)
			cmd.Path, cmd.Stderr = holdfast, stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			await(t, time.Minute, "the command runs", func() bool { return read(t, file) != "" })
			pid := number(t, file)
			defer syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // if the test failed
			if got := run(t, command(t, url, "break", name, "--reason", "test", "--yes")); got.status != 0 {
				t.Fatalf("%+v", got)
			}
			await(t, time.Minute, "it is said", func() bool { return strings.Contains(read(t, said), "another user") })
			if name == "command" {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Errorf("the command of another user has ended: %v", err)
				}
			}
			_ = cmd.Wait()
			if status := cmd.ProcessState.ExitCode(); status != 70 {
				t.Errorf("status %d, want 70: %s", status, read(t, said))
			}
		})
	}
}
