package nightly_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestRelease makes a release in a clone, and imports it from a module that is not in this repository,
// as its users will. Nothing is published, and with the module cache filled nothing is downloaded.
func TestRelease(t *testing.T) {
	t.Parallel()
	const version = "v0.1.0"
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	copySources(t, source)
	// Who commits is set here, and nothing that this machine has set for git counts.
	git := []string{
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@holdfast.invalid", "GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@holdfast.invalid",
	}
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "--all"}, {"commit", "--quiet", "--message", "sources"}} {
		run(t, source, git, "git", args...)
	}
	tags := run(t, source, git, "scripts/release", version, dir)
	for _, tag := range []string{version, "backend/redislock/" + version, "cmd/holdfast/" + version} {
		if !strings.Contains("\n"+tags, "\n"+tag+"\n") {
			t.Errorf("there is no tag %s in %q", tag, tags)
		}
	}
	cache := strings.TrimSpace(run(t, "", nil, "go", "env", "GOMODCACHE"))
	proxy := "file://" + filepath.Join(dir, "modules", "cache", "download") + ",file://" + filepath.Join(cache, "cache", "download")
	env := []string{
		"GOWORK=off", "GOFLAGS=-mod=mod -modcacherw", "GOSUMDB=off", "GOPROXY=" + proxy, "GOMODCACHE=" + filepath.Join(dir, "outside"),
	}
	for name, c := range map[string]struct {
		module, program string
		most            int // lines of go.sum
	}{
		"memlock": {"github.com/holdfast-io/holdfast", `memlock.New()`, 5},
		"redislock": {
			"github.com/holdfast-io/holdfast/backend/redislock", `redislock.Open(context.Background(), "redis://localhost", redislock.Config{})`, 25,
		},
	} {
		folder := filepath.Join(dir, "program-of-"+name)
		files := map[string]string{
			"go.mod": "module example.org/program\n\ngo 1.26\n",
			"main.go": strings.NewReplacer("NAME", name, "CALL", c.program).Replace(`package main

import (
	"context"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/NAME"
)

var _ context.Context

func main() { open(CALL) }

func open(b *NAME.Backend, err ...error) { _, _ = holdfast.New(b, holdfast.Config{}) }
`),
		}
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		run(t, folder, env, "go", "get", c.module+"@"+version)
		run(t, folder, env, "go", "mod", "tidy")
		run(t, folder, env, "go", "build", "-o", "program", ".")
		sum, err := os.ReadFile(filepath.Join(folder, "go.sum"))
		if n := bytes.Count(sum, []byte("\n")); err != nil || n == 0 || n > c.most {
			t.Errorf("go.sum of a program with %s has %d lines, want 1 to %d, %v\n%s", name, n, c.most, err, sum)
		}
	}
	stranger(t, filepath.Join(dir, "stranger"), version, env)
	// Built at the tag, as goreleaser does, and with the flags of TestDeb: the cache then has all but our own packages.
	binary := filepath.Join(dir, "command")
	run(t, filepath.Join(dir, "holdfast", "cmd", "holdfast"), append(env, "CGO_ENABLED=0"), "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags=-s -w", "-o", binary, ".")
	if got := run(t, dir, nil, binary, "version"); !strings.HasPrefix(got, "holdfast version "+strings.TrimPrefix(version, "v")+" (") {
		t.Errorf("the command of %s prints %q", version, got)
	}
}

// stranger has a user who knows only the README: an empty home, the program of the page, and a Redis that was
// just started. The first lock comes within a second, or a sentence says when it will, and why.
func stranger(t *testing.T, folder, version string, env []string) {
	t.Helper()
	_, rest, _ := strings.Cut(read(t, "README.md"), "```go\n")
	program, _, _ := strings.Cut(rest, "```")
	const addr, config = "localhost:6379", "redislock.Config{}"
	if !strings.Contains(program, addr) || !strings.Contains(program, config) {
		t.Fatalf("the program of the README has no %s or no %s", addr, config)
	}
	home := filepath.Join(folder, "home")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	env = append(env, "GOCACHE="+strings.TrimSpace(run(t, "", nil, "go", "env", "GOCACHE")), "HOME="+home, "XDG_CONFIG_HOME="+home)
	server := testserver.Redis(t)
	for name, c := range map[string]struct{ config, says string }{
		"fresh": {config, "the server is new or lost its data"},
		"off":   {"redislock.Config{Quarantine: redislock.NoQuarantine}", "charging with token"},
	} {
		at := filepath.Join(folder, name)
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{
			"go.mod": "module example.org/stranger\n\ngo 1.26\n", "main.go": strings.NewReplacer(addr, server.Addr(), config, c.config).Replace(program),
		} {
			if err := os.WriteFile(filepath.Join(at, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		run(t, at, env, "go", "get", "github.com/holdfast-io/holdfast@"+version, "github.com/holdfast-io/holdfast/backend/redislock/goredis@"+version)
		run(t, at, env, "go", "build", "-o", "program", ".")
		leasetest.Promptly(t, time.Second, func() time.Duration {
			server.RestartEmpty() // the program that was ended before may hold its lock
			return says(t, at, env, c.says)
		})
	}
}

// says runs the program until it says what it is to say, and returns how long that took from its start, or how long it
// was waited for.
func says(t *testing.T, dir string, env []string, want string) time.Duration {
	t.Helper()
	const most = 20 * time.Second // less than the quarantine
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "./program")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	from := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(io.TeeReader(out, &said)); lines.Scan(); {
		if strings.Contains(lines.Text(), want) {
			took := time.Since(from)
			cancel()
			_ = cmd.Wait()
			return took
		}
	}
	err = cmd.Wait() // all that it said has been read
	if ctx.Err() != nil {
		t.Logf("it did not say %q within %s, but %q", want, most, said.String())
		return most
	}
	t.Fatalf("it did not say %q, but %q: %v", want, said.String(), err)
	return 0
}

// copySources copies the sources as they are: committed or not, and also from a folder that is no clone.
func copySources(t *testing.T, to string) {
	t.Helper()
	root := file(t)
	err := filepath.WalkDir(root, func(from string, d fs.DirEntry, err error) error {
		path := strings.TrimPrefix(strings.TrimPrefix(from, root), "/")
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", ".data", ".screenshots"}, path):
			return fs.SkipDir
		case path == ".git": // a file in a linked worktree: git would commit to the branch of that
			return nil
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, path), 0o700)
		case !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, path), text, info.Mode().Perm())
	})
	if err != nil {
		t.Fatal(err)
	}
}

// run runs a command to its end and returns what it prints. It must succeed.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), env...), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String()
}
