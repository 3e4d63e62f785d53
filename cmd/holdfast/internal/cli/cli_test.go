package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	ossignal "os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// binary is the command, built once for all tests.
var binary string

// tagsEnv has the build tags of the command.
const tagsEnv = "HOLDFAST_TEST_TAGS"

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "holdfast-cli")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "holdfast")
	build := exec.CommandContext(context.Background(), "go", "build", "-C", "../../../../cmd/holdfast", "-tags", os.Getenv(tagsEnv), "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("build: %v\n%s", err, out))
	}
	heed()
	flag.Parse()
	_ = flag.Set("test.parallel", "4") // most tests wait: for a lease to end, or for a store that does not answer
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

// heed makes the commands of the tests handle signals even if the tests were started with some
// ignored (nohup, a job in the background), which commands inherit and respect: a signal with a
// handler is not ignored in a child.
func heed() {
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTSTP} {
		if ossignal.Ignored(s) {
			ossignal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

// command returns a holdfast command with these arguments on that backend.
func command(t *testing.T, backend string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "HOLDFAST_BACKEND="+backend)
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// result is the result of a run of the command.
type result struct {
	status      int
	out, stderr string
}

func run(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var out interface {
		io.Writer
		fmt.Stringer
	} = &bytes.Buffer{}
	if w, ok := cmd.Stdout.(*trigger); ok {
		out = w
	}
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, context.Canceled) {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), stderr.String()}
}

// steadily runs a command, and runs it again where the server or the store had no answer, because the machine or its disk
// stood still. A refusal has the same status, and is an answer. A command without an answer may have worked; undo takes
// that back.
func steadily(cmd func() result, undo ...func()) result {
	const tries = 5
	r := cmd()
	for n := 1; n < tries && r.status == 74 && !strings.Contains(r.stderr, "credentials") && !strings.Contains(r.stderr, "no grant"); n++ {
		for _, f := range undo {
			f()
		}
		r = cmd()
	}
	return r
}

func sqliteURL(t *testing.T) string {
	t.Helper()
	return "sqlite://" + filepath.Join(t.TempDir(), "locks.db")
}

// backends are those on which the command is tested: with sessions, and with timed leases only. That the stores keep the
// contract is proved by their own tests.
func backends() map[string]func(t *testing.T) string {
	return map[string]func(t *testing.T) string{
		"sqlite": sqliteURL,
		"holdfast": func(t *testing.T) string {
			t.Helper()
			return "holdfast://" + startServer(t, testserver.Dir(t), testserver.FreePort(t)).addr
		},
	}
}

// server is a separate "holdfast serve".
type server struct {
	*testserver.Process
	addr string
}

func startServer(t *testing.T, dir string, port int) server {
	t.Helper()
	return startServerOn(t, port, "--data-dir", filepath.Join(dir, "data"))
}

// startServerOn starts a server on the store that the flags name.
func startServerOn(t *testing.T, port int, store ...string) server {
	t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	p := testserver.Start(t, testserver.Command{Path: binary, Args: append([]string{"serve", "--listen", addr}, store...)})
	p.Await(2*time.Minute, func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, binary, "doctor", "--backend", "holdfast://"+addr)
		return cmd.Run()
	})
	return server{p, addr}
}

func TestExitStatuses(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	held := run(t, command(t, url, "acquire", "taken", "--ttl", "5m", "--json"))
	if held.status != 0 {
		t.Fatalf("%+v", held)
	}
	cases := []struct {
		want   int
		stderr string
		args   []string
	}{
		{0, "", []string{"run", "n", "--", "true"}},
		{7, "", []string{"run", "n", "--", "sh", "-c", "exit 7"}},
		{128 + 9, "", []string{"run", "n", "--", "sh", "-c", "kill -9 $$"}},
		{75, `lock "taken" is held`, []string{"run", "--try", "taken", "--", "true"}},
		{75, `lock "taken" is held`, []string{"run", "--wait", "5s", "taken", "--", "true"}},
		{75, `lock "taken" is held`, []string{"acquire", "--try", "taken"}},
		{74, "unavailable", []string{"run", "--backend", "redis://127.0.0.1:1", "n", "--", "true"}},
		{127, "not found", []string{"run", "n", "--", "no-such-command-here"}},
		{126, "permission denied", []string{"run", "n", "--", "/etc/passwd"}},
		{64, "NAME -- COMMAND", []string{"run", "n", "true"}},
		{64, "unknown command", []string{"rnu"}},
		{64, "unknown flag", []string{"ls", "--nope"}},
		{64, "scheme", []string{"ls", "--backend", "carrier-pigeon://coop"}},
		{64, "sqlite", []string{"ls", "--backend", url + "?nope=1"}},
		{64, "redis", []string{"ls", "--backend", "redis://127.0.0.1:1?nope=1"}},
		{64, "reason", []string{"break", "taken"}},
		{64, "--yes", []string{"break", "taken", "--reason", "r"}},
		{64, "lease", []string{"release", "taken", "short"}},
		{70, "lost", []string{"release", "taken", "0123456789abcdef"}},
		{70, "lost", []string{"renew", "taken", "0123456789abcdef"}},
	}
	for _, tc := range cases {
		got := run(t, command(t, url, tc.args...))
		if got.status != tc.want || !strings.Contains(got.stderr, tc.stderr) || tc.want == 0 && got.stderr != "" {
			t.Errorf("%q: status %d, want %d; stderr %q, want %q in it", tc.args, got.status, tc.want, got.stderr, tc.stderr)
		}
	}
	if after := run(t, command(t, url, "show", "taken", "--json")); !strings.Contains(after.out, `"expires_at"`) {
		t.Errorf("bad usage has changed something: %s", after.out)
	}
}

// A store that is down, or that accepts connections and never answers, ends a command without --wait: with 74, and with
// the reason.
func TestStoreIsDown(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	for _, kind := range []struct {
		name, addr, reason string
	}{
		{"closed", fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t)), "connection refused"},
		{"silent", silent.Addr().String(), `no answer|i/o timeout|timeout: context deadline exceeded|use of closed network connection`},
	} {
		config := filepath.Join(t.TempDir(), "kubeconfig")
		text := `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
			"contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}], "users": [{"name": "u", "user": {"token": "t"}}],
			"clusters": [{"name": "k", "cluster": {"server": "http://` + kind.addr + `"}}]}`
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for scheme, rest := range map[string]string{
			"redis": "", "etcd": "", "zookeeper": "", "consul": "", "holdfast": "", "kubernetes": "", "redlock": "",
			"postgres": "/db", "postgres+advisory": "/db", "mysql": "/db", "mysql+getlock": "/db",
		} {
			t.Run(kind.name+"/"+scheme, func(t *testing.T) {
				t.Parallel()
				url, reason := scheme+"://"+kind.addr+rest, kind.reason
				switch scheme {
				case "kubernetes":
					url = "kubernetes://default?kubeconfig=" + config
				case "redlock":
					_, port, _ := net.SplitHostPort(kind.addr)
					url, reason = url+",localhost:"+port+",[::1]:"+port, "too few nodes answered"
				case "postgres", "postgres+advisory", "mysql", "mysql+getlock":
					url = scheme + "://user@" + kind.addr + rest
				}
				got := run(t, command(t, url, "run", "n", "--", "true"))
				if got.status != 74 || !regexp.MustCompile(reason).MatchString(got.stderr) {
					t.Errorf("status %d; stderr %q, want %q in it", got.status, got.stderr, reason)
				}
				if strings.Contains(got.stderr, "unknown state") || strings.Contains(got.stderr, "may have worked") || strings.Count(got.stderr, "\n") > 5 {
					t.Errorf("too much is said of a lock that was never requested: %s", got.stderr)
				}
			})
		}
	}
}

func TestEnvironmentOfTheCommand(t *testing.T) {
	t.Parallel()
	got := run(t, command(t, sqliteURL(t), "run", "a/b c", "--", "sh", "-c", `echo "$HOLDFAST_LOCK|$HOLDFAST_TOKEN|$HOLDFAST_LEASE"; cat`))
	parts := strings.Split(strings.TrimSpace(got.out), "|")
	if len(parts) != 3 || parts[0] != "a/b c" || parts[1] == "" || len(parts[2]) < 16 {
		t.Fatalf("%+v", got)
	}
}

// A lock from the shell: acquired, listed, renewed, broken, released.
func TestLeaseFromTheShell(t *testing.T) {
	t.Parallel()
	for name, start := range backends() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := start(t)
			script := `set -e
				eval "$("$H" acquire deploy --ttl 1m --owner maria --note "it's \$HOME" --export)"
				test -n "$HOLDFAST_TOKEN"
				"$H" show deploy --json
				"$H" renew --ttl 2m >/dev/null
				"$H" ls de >/dev/null
				"$H" release
				"$H" show deploy`
			cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
			cmd.Env = append(os.Environ(), "HOLDFAST_BACKEND="+url, "H="+binary)
			got := run(t, cmd)
			if got.status != 0 || !strings.Contains(got.out, `"note": "it's $HOME"`) || !strings.HasSuffix(got.out, "deploy is free\n") {
				t.Fatalf("%+v", got)
			}
			var lease struct {
				Lease string
				Token uint64
			}
			first := run(t, command(t, url, "acquire", "deploy", "--ttl", "2h", "--json"))
			if err := json.Unmarshal([]byte(first.out), &lease); err != nil {
				t.Fatalf("%v: %+v", err, first)
			}
			// Without --ttl the lease keeps its own.
			renewed := run(t, command(t, url, "renew", "deploy", lease.Lease, "--json"))
			var is struct {
				Token     uint64
				ExpiresAt time.Time `json:"expires_at"`
			}
			if err := json.Unmarshal([]byte(renewed.out), &is); err != nil || is.Token != lease.Token || time.Until(is.ExpiresAt) < time.Hour {
				t.Fatalf("%v: %+v; want two hours from now", err, renewed)
			}
			var answer struct {
				Token  uint64
				Broken []struct{ Lease string }
			}
			other := run(t, command(t, url, "break", "deploy", "--lease", "another-lease-of-nobody", "--reason", "test", "--yes", "--json"))
			if err := json.Unmarshal([]byte(other.out), &answer); err != nil || len(answer.Broken) != 0 {
				t.Fatalf("break of another lease: %v: %+v", err, other)
			}
			broken := run(t, command(t, url, "break", "deploy", "--lease", lease.Lease, "--reason", "test", "--yes", "--json"))
			if err := json.Unmarshal([]byte(broken.out), &answer); err != nil || len(answer.Broken) != 1 || answer.Token <= lease.Token {
				t.Fatalf("%v: %+v", err, broken)
			}
			if got := run(t, command(t, url, "release", "deploy", lease.Lease)); got.status != 70 {
				t.Fatalf("release of what was broken: %+v", got)
			}
			if got := run(t, command(t, url, "break", "deploy", "--reason", "test", "--yes")); got.status != 0 || got.out != "deploy: no client held it, nothing was broken\n" {
				t.Errorf("break of a free lock: %+v", got)
			}
		})
	}
}

// All JSON output can be parsed.
func TestJSON(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	run(t, command(t, url, "acquire", "n", "--ttl", "1m"))
	for _, args := range [][]string{{"ls"}, {"show", "n"}, {"doctor"}, {"version"}, {"init-store"}} {
		got := run(t, command(t, url, append(args, "--json")...))
		var v map[string]any
		if err := json.Unmarshal([]byte(got.out), &v); err != nil || got.status != 0 {
			t.Errorf("%v: %v: %+v", args, err, got)
		}
	}
	got := run(t, command(t, url, "show", "a//b", "--json"))
	var v map[string]any
	if err := json.Unmarshal([]byte(got.stderr), &v); err != nil || v["status"] != float64(64) {
		t.Errorf("an error as JSON: %v: %+v", err, got)
	}
}

func TestCompletionAndHelp(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got := run(t, command(t, "memory://", "completion", shell)); got.status != 0 || !strings.Contains(got.out, "holdfast") || strings.Contains(got.out, `\u00`) || strings.Contains(got.out, `\x1b`) {
			t.Errorf("%s: %d, or the script was made visible", shell, got.status)
		}
	}
	url := sqliteURL(t)
	run(t, command(t, url, "acquire", "nightly", "--ttl", "1m"))
	if got := run(t, command(t, url, "__complete", "show", "ni")); !strings.Contains(got.out, "nightly") {
		t.Errorf("names are not completed: %+v", got)
	}
	version := run(t, command(t, url, "version"))
	if got := run(t, command(t, url, "--version")); got != version || got.status != 0 || !strings.Contains(got.out, ", "+runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH+")\n") {
		t.Errorf("--version: %+v; version: %+v", got, version)
	}
	help := run(t, command(t, url, "help")).out
	for _, sub := range []string{"run", "serve", "acquire", "renew", "release", "ls", "show", "break", "watch", "doctor", "init-store", "version", "completion"} {
		if !strings.Contains(help, "\n  "+sub+" ") {
			t.Errorf("help does not name %s", sub)
		}
		got := run(t, command(t, url, sub, "--help"))
		if got.status != 0 || len(got.out) < 100 {
			t.Errorf("%s --help: %+v", sub, got)
		}
	}
}

// A password appears nowhere: not in errors, not in the arguments of a process.
func TestSecretsAreNotTold(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-canary"
	var all sync.WaitGroup
	for _, url := range []string{
		"redis://:" + secret + "@127.0.0.1:1", "redis://u:" + secret + "@127.0.0.1:1?nope=1", "etcd://u:" + secret + "@127.0.0.1:1?timeout=100ms",
		"holdfast://:" + secret + "@127.0.0.1:1", "nope://u:" + secret + "@h", secret, "redis://u:" + secret + "@%zz", "sqlite://u:" + secret + "@/x",
		"etcd://u:" + secret + "@h:port", "holdfast://u:" + secret + "@h?x=1", "memory://" + secret,
	} {
		for _, args := range [][]string{{"run", "--wait", "100ms", "n", "--", "true"}, {"ls", "-v"}, {"doctor", "--json"}} {
			all.Go(func() {
				got := run(t, command(t, url, args...))
				if got.status == 0 || strings.Contains(got.out+got.stderr, secret) {
					t.Errorf("%s %v: status %d, told %q %q", url, args, got.status, got.out, got.stderr)
				}
			})
		}
	}
	all.Wait()
}

// A command that is interrupted while it waits leaves the queue, and ends like a process that
// the signal ended.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	url := sqliteURL(t)
	run(t, command(t, url, "acquire", "n", "--ttl", "5m"))
	for s, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		cmd := command(t, url, "acquire", "n", "--wait", "1m")
		if s == syscall.SIGTERM {
			cmd = command(t, url, "run", "--ttl", "5m", "n", "--", "true")
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		waiting := func() bool { return strings.Contains(run(t, command(t, url, "show", "n")).out, "waits, 1") }
		await(t, 30*time.Second, "it waits in the queue", waiting)
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if status := cmd.ProcessState.ExitCode(); status != want {
			t.Errorf("%v: status %d, want %d", s, status, want)
		}
		await(t, 18*time.Second, "the place in the queue is given up", func() bool { return !waiting() }) // its session would keep it for 20 s
	}
	watch := command(t, url, "watch")
	stderr, err := watch.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stderr.Read(make([]byte, 1)); err != nil { // it reports that it watches
		t.Fatal(err)
	}
	if err := watch.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = watch.Wait()
	if status := watch.ProcessState.ExitCode(); status != 0 {
		t.Errorf("watch: status %d, want 0", status)
	}
	left, err := filepath.Glob(strings.TrimPrefix(url, "sqlite://") + "-wake/*")
	if err != nil || len(left) > 0 {
		t.Errorf("sockets left behind: %q, %v", left, err)
	}
}
