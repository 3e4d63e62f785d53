package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// terminal is a pseudo terminal with an interactive shell on it.
type terminal struct {
	t     *testing.T
	keys  *os.File // what is written here was typed
	shell *exec.Cmd

	mu     sync.Mutex
	screen bytes.Buffer
}

// openTerminal starts a shell, bash if none is given, on a terminal of its own. holdfast is in its PATH.
func openTerminal(t *testing.T, url string, shell ...string) *terminal {
	t.Helper()
	if len(shell) == 0 {
		shell = []string{"bash", "--norc", "--noprofile", "-i"}
	}
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, keys: keys, shell: exec.CommandContext(context.WithoutCancel(t.Context()), shell[0], shell[1:]...)}
	x.control(func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0) })
	var n int
	x.control(func(fd int) error { n, err = unix.IoctlGetInt(fd, unix.TIOCGPTN); return err })
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	x.shell.Env = append(os.Environ(), "HOLDFAST_BACKEND="+url, "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"), "PS1=> ", "HISTFILE=", "TERM=dumb")
	x.shell.Stdin, x.shell.Stdout, x.shell.Stderr = tty, tty, tty
	x.shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.shell.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := keys.Read(b)
			x.mu.Lock()
			x.screen.Write(b[:n])
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = x.shell.Process.Kill()
		_ = x.shell.Wait()
		_ = keys.Close() // hangs up on the remaining processes
		<-read
		if t.Failed() {
			t.Logf("the screen:\n%s", x.text())
		}
	})
	x.sees("> ")
	return x
}

// control calls f with the descriptor, which stays one that a Close wakes.
func (x *terminal) control(f func(fd int) error) {
	x.t.Helper()
	raw, err := x.keys.SyscallConn()
	if err != nil {
		x.t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil || failed != nil {
		x.t.Fatal(err, failed)
	}
}

// foreground returns the process group in the foreground of the terminal.
func (x *terminal) foreground() int {
	x.t.Helper()
	group := 0
	x.control(func(fd int) error {
		var err error
		group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	return group
}

func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.screen.String()
}

// types writes as if s was typed.
func (x *terminal) types(s string) {
	x.t.Helper()
	if _, err := x.keys.WriteString(s); err != nil {
		x.t.Fatal(err)
	}
}

// sees waits until the text is on the screen, and clears the screen up to it.
func (x *terminal) sees(text string) {
	x.t.Helper()
	await(x.t, 30*time.Second, "the screen shows "+text, func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		i := strings.Index(x.screen.String(), text)
		if i < 0 {
			return false
		}
		x.screen.Next(i + len(text))
		return true
	})
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

// Typed input is read by the command, and Ctrl-C reaches only the command.
func TestTerminal(t *testing.T) {
	t.Parallel()
	x := openTerminal(t, sqliteURL(t))
	x.types(`holdfast run n -- sh -c 'echo "ask"-me; read x; echo "read=$x"'; echo "status=$?"` + "\n")
	x.sees("ask-me")
	x.types("some words\n")
	x.sees("read=some words")
	x.sees("status=0")
	x.types(`holdfast run n -- sh -c 'trap "echo got-"int"; exit 7" INT; echo "u"p; while :; do sleep 0.05; done'; echo "status=$?"` + "\n")
	x.sees("\nup")
	x.types(ctrlC)
	x.sees("got-int")
	x.sees("status=7")
	x.types(`holdfast run n -- perl -e '$| = 1; print "u", "p\n"; sleep 100'; echo "status=$?"` + "\n") // sh may lose the signal
	x.sees("\nup")
	x.types(ctrlC)
	x.sees("status=130")
}

// beats returns a command that writes the time to a file repeatedly, until the file stop
// exists. It starts no processes: one that is stopped between vfork and exec would keep its
// parent from being stopped.
func beats(t *testing.T) (beating, string, string) {
	t.Helper()
	dir := t.TempDir()
	file, stop, script := filepath.Join(dir, "beats"), filepath.Join(dir, "stop"), filepath.Join(dir, "beat.pl")
	text := fmt.Sprintf(`use Time::HiRes qw(time sleep);
open(P, ">", "%[2]s.pid"); print P $$; close P;
until (-e "%[1]s") { open(F, ">>", "%[2]s"); printf F "%%d\n", time * 1e9; close F; sleep 0.01 }
`, stop, file)
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return beating{file: file}, "perl " + script, stop
}

func (b beating) begun(t *testing.T) {
	t.Helper()
	await(t, 30*time.Second, "the command runs", func() bool { return read(t, b.file) != "" })
}

// stopped fails the test if the command is not stopped.
func (b beating) stopped(t *testing.T) {
	t.Helper()
	stat := read(t, "/proc/"+read(t, b.file+".pid")+"/stat")
	if _, state, _ := strings.Cut(stat, ") "); !strings.HasPrefix(state, "T") {
		t.Errorf("the command is not stopped: %s", stat)
	}
}

// more waits until the command writes.
func (b beating) more(t *testing.T) {
	t.Helper()
	n := len(read(t, b.file))
	await(t, 30*time.Second, "the command continues", func() bool { return len(read(t, b.file)) > n })
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Ctrl-Z stops the job, so that the shell gets the terminal. fg continues it, under the same
// lock. bg continues it too, and leaves the terminal to the shell.
func TestStopAndGoOn(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"fg", "bg"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			url := sqliteURL(t)
			x := openTerminal(t, url)
			b, cmd, stop := beats(t)
			x.types("holdfast run --ttl 5m n -- " + cmd + "; echo status=$?\n")
			b.begun(t)
			x.types(ctrlZ)
			x.sees("Stopped")
			b.stopped(t)
			x.sees("> ")
			x.types("echo shell-$((40+2))\n")
			x.sees("shell-42")
			held := run(t, command(t, url, "show", "n", "--json")).out
			x.types(how + "\n")
			b.more(t)
			if group := x.foreground(); (group == x.shell.Process.Pid) != (how == "bg") {
				t.Errorf("after %s group %d has the terminal; the shell's is %d", how, group, x.shell.Process.Pid)
			}
			if got := run(t, command(t, url, "show", "n", "--json")).out; field(t, got, "lease") != field(t, held, "lease") {
				t.Errorf("held %s, then %s", held, got)
			}
			touch(t, stop)
			if how == "bg" {
				await(t, 30*time.Second, "the job ends", func() bool {
					return !strings.Contains(run(t, command(t, url, "show", "n")).out, "holds")
				})
				if group := x.foreground(); group != x.shell.Process.Pid {
					t.Errorf("in the end group %d has the terminal; the shell's is %d", group, x.shell.Process.Pid)
				}
				x.types("wait %1; echo waited=$?\n")
				x.sees("waited=0")
				return
			}
			x.sees("> ")
			x.types("echo went=$?\n")
			x.sees("went=0")
		})
	}
}

// A job that was stopped does not outlive its lease, and reports that when it continues.
func TestStoppedPastTheLease(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	url := sqliteURL(t)
	x := openTerminal(t, url)
	b, cmd, _ := beats(t)
	x.types("holdfast run --ttl 10s n -- " + cmd + "; echo status=$?\n")
	b.begun(t)
	x.types(ctrlZ)
	x.sees("Stopped")
	b.stopped(t)
	began := next(t, url)
	x.types("fg; echo went=$?\n")
	x.sees("went=70")
	if last := b.last(t); last >= began {
		t.Errorf("the old command was alive %s after the new one began", time.Duration(last-began))
	}
	x.types("echo shell-$((40+2))\n")
	x.sees("shell-42")
}

// Ctrl-C ends a command that the kernel has stopped because it read from the terminal in the background.
func TestInterruptStopped(t *testing.T) {
	t.Parallel()
	x := openTerminal(t, sqliteURL(t))
	file := filepath.Join(t.TempDir(), "pid")
	x.types("holdfast run --ttl 5m n -- sh -c 'echo $$ >" + file + "; exec cat' &\n")
	await(t, 30*time.Second, "the command is stopped", func() bool {
		stat, _ := os.ReadFile("/proc/" + strings.TrimSpace(read(t, file)) + "/stat")
		return strings.Contains(string(stat), "(cat) T")
	})
	x.types("fg; echo went=$?\n")
	await(t, 30*time.Second, "the job has the terminal", func() bool { return x.foreground() != x.shell.Process.Pid })
	x.types(ctrlC)
	x.sees("went=130")
}

// Ctrl-Z also stops a job whose input is not the terminal.
func TestStopInAPipeline(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	x := openTerminal(t, url)
	b, cmd, stop := beats(t)
	x.types("true | holdfast run --ttl 5m n -- " + cmd + "; echo status=$?\n")
	b.begun(t)
	x.types(ctrlZ)
	x.sees("Stopped")
	b.stopped(t)
	x.types("fg; echo went=$?\n")
	b.more(t)
	touch(t, stop)
	x.sees("went=0")
	_ = os.Remove(stop)
	x.types("true | holdfast run --ttl 5m n -- " + cmd + "; echo status=$?\n")
	b.more(t)
	x.types(ctrlC)
	x.sees("status=130")
}

// A pager behind the command reads the keys: the command does not take the terminal from it.
func TestPipeIntoAPager(t *testing.T) {
	t.Parallel()
	x := openTerminal(t, sqliteURL(t))
	x.types(`holdfast run n -- sh -c 'echo "fr"om-the-command; sleep 0.5' | sh -c 'read a; echo "$a"; read k </dev/tty; echo "key=$k"'` + "\n")
	x.sees("\nfrom-the-command")
	x.types("q\n")
	x.sees("key=q")
}
