package cli_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// A command under two locks sees the inner one: its token must not be that of another lock,
// which a resource may take for a newer one.
func TestRunWithinRun(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	got := run(t, command(t, url, "run", "outer", "--", binary, "run", "inner", "--", "sh", "-c",
		`echo "$HOLDFAST_LOCK $HOLDFAST_LEASE $HOLDFAST_TOKEN"; env | grep -c ^HOLDFAST_TOKEN=; "$0" show inner --json`, binary))
	lines := strings.SplitN(got.out, "\n", 3)
	if got.status != 0 || len(lines) != 3 {
		t.Fatalf("%+v", got)
	}
	if want := "inner " + field(t, lines[2], "lease") + " " + field(t, lines[2], "token"); lines[0] != want || lines[1] != "1" {
		t.Errorf("the command was told %q, %s tokens, want %q", lines[0], lines[1], want)
	}
}

// The command does not inherit a password, and a holdfast in it says so: it does not use the local file, where the
// locks of others are free.
func TestPasswordIsNotPassedOn(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-canary"
	url := "redis://:" + secret + "@" + testserver.Redis(t, "--requirepass", secret).Addr() + "?quarantine=off"
	state := testserver.Dir(t)
	in := func(verb string, args ...string) result {
		t.Helper()
		cmd := command(t, url, append([]string{verb}, args...)...)
		cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+state, "H="+binary)
		return run(t, cmd)
	}
	for _, verb := range []string{"run", "elect"} {
		if got := in(verb, verb, "--", "env"); got.status != 0 || strings.Contains(got.out, secret) {
			t.Errorf("%s: %+v", verb, got)
		}
	}
	for _, inner := range []string{`"$H" run inner -- true`, `"$H" ls`, `"$H" doctor`} {
		if got := in("run", "outer", "--", "sh", "-c", inner); got.status != 64 || !strings.Contains(got.stderr, "HOLDFAST_BACKEND") || !strings.Contains(got.stderr, "--pass-backend") {
			t.Errorf("%s: %+v", inner, got)
		}
		inner = "export HOLDFAST_BACKEND=sqlite://" + state + "/x.db; " + inner
		if got := in("run", "outer", "--", "sh", "-c", inner); strings.Contains(got.stderr, "--pass-backend") {
			t.Errorf("%s: %+v", inner, got)
		}
	}
	if got := in("run", "--pass-backend", "outer", "--", "sh", "-c", `"$H" show outer --json`); got.status != 0 || !strings.Contains(got.out, `"outer"`) {
		t.Errorf("with --pass-backend: %+v", got)
	}
}

// The command has the files that holdfast was started with, and none of holdfast's own.
func TestFilesArePassedOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, []byte("from the third\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := `exec "$0" run n -- sh -c 'cat <&3 >&4; ls -l /proc/$$/fd >&4' 3<"$1" 4>"$2"`
	cmd := command(t, sqliteURL(t))
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", script, binary, in, out}
	if got := run(t, cmd); got.status != 0 {
		t.Fatalf("%+v", got)
	}
	text, open, _ := strings.Cut(read(t, out), "\n")
	if text != "from the third" {
		t.Errorf("the command read %q", text)
	}
	// Its only pipes are standard output and error, which this test made; 5 would be
	// holdfast's.
	if strings.Contains(open, "locks.db") || strings.Contains(open, " 5 -> ") {
		t.Errorf("the command has\n%s", open)
	}
}

// A holder whose program was replaced, or removed, while it waited still runs its command.
func TestProgramRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	held := run(t, command(t, url, "acquire", "--ttl", "1h", "n", "--json"))
	other := filepath.Join(t.TempDir(), "holdfast")
	if err := os.Link(binary, other); err != nil {
		t.Fatal(err)
	}
	waiting := command(t, url, "run", "n", "--", "true")
	waiting.Path = other
	if err := waiting.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, time.Minute, "it waits", func() bool {
		return strings.Contains(run(t, command(t, url, "show", "n", "--json")).out, `"position": 1`)
	})
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if got := run(t, command(t, url, "release", "n", field(t, held.out, "lease"))); got.status != 0 {
		t.Fatalf("%+v", got)
	}
	if err := waiting.Wait(); err != nil {
		t.Errorf("the command was not run: %v", err)
	}
}

// The output has no reader: a lease that could not be printed is released, and a command
// continues under its lock.
func TestBrokenPipe(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	acquire := command(t, url, "acquire", "--ttl", "1h", "n")
	acquire.Stdout = w
	if err := acquire.Run(); err == nil || acquire.ProcessState.ExitCode() != 1 {
		t.Errorf("acquire: %v, want status 1", err)
	}
	if got := run(t, command(t, url, "run", "--try", "n", "--", "true")); got.status != 0 {
		t.Errorf("the lock is not free: %+v", got)
	}
	for _, verb := range []string{"run", "elect"} {
		// The command is ended when the lock is taken away, and the message has no reader
		// either. The command itself gets SIGPIPE as usual.
		ready := filepath.Join(t.TempDir(), "ready")
		quiet := command(t, url, verb, verb, "--", "sh", "-c", `(echo >&2; exit 3); test $? = 141 || exit 4; exec 2>/dev/null
			trap 'echo told >"$0"; exit' TERM; echo ready >"$0"; while :; do sleep 0.01; done`, ready)
		if verb == "elect" {
			quiet.Args = slices.Insert(quiet.Args, 2, "--once")
		}
		quiet.Stderr = w
		if err := quiet.Start(); err != nil {
			t.Fatal(err)
		}
		await(t, time.Minute, "the command runs", func() bool { return read(t, ready) != "" || quiet.Process.Signal(syscall.Signal(0)) != nil })
		if got := run(t, command(t, url, "break", verb, "--reason", "test", "--yes")); got.status != 0 {
			t.Fatalf("%+v", got)
		}
		if err := quiet.Wait(); err == nil || quiet.ProcessState.ExitCode() != 70 || read(t, ready) != "told" {
			t.Errorf("%s: %v, and the command was %q, want status 70, and told", verb, err, read(t, ready))
		}
	}
}

// A signal that was ignored when holdfast was started stays ignored, by the command too: as
// with nohup, or with an & in a script.
func TestIgnoredSignals(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{"HUP": syscall.SIGHUP, "INT": syscall.SIGINT} {
		ready := filepath.Join(t.TempDir(), "ready")
		cmd := command(t, sqliteURL(t))
		cmd.Path, cmd.Args = "/bin/sh", []string{
			"sh", "-c", `trap '' ` + name + `; exec "$0" run n -- sh -c 'trap "exit 3" USR1; echo ready >"$0"; while :; do sleep 0.01; done' "$1"`, binary, ready,
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		await(t, time.Minute, "the command runs", func() bool { return read(t, ready) != "" })
		for _, s := range []syscall.Signal{signal, syscall.SIGUSR1} { // they are passed on in order
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 3 {
			t.Errorf("%s: %v, want status 3", name, err)
		}
	}
}

// A waiter in the queue is stopped by Ctrl-Z like any process, and continues with fg.
func TestStopWhileWaiting(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	held := run(t, command(t, url, "acquire", "--ttl", "1h", "n", "--json"))
	x := openTerminal(t, url)
	for _, verb := range []string{"run", "elect"} {
		x.types("holdfast " + verb + " n -- echo it was h'a'd\n")
		x.sees("waiting for")
		x.types(ctrlZ)
		x.sees("Stopped")
		x.sees("> ")
		x.types("fg\n")
		x.sees("holdfast " + verb)
		if verb == "run" {
			x.types(ctrlC)
			x.sees("> ")
			continue
		}
		if got := run(t, command(t, url, "release", "n", field(t, held.out, "lease"))); got.status != 0 {
			t.Fatalf("%+v", got)
		}
		x.sees("it was had")
	}
}
