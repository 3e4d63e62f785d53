//go:build unix

package launch_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// start runs a script of the shell, which is killed at the end of the test.
func start(t *testing.T, script string) *launch.Process {
	t.Helper()
	p, err := launch.Start(launch.Command{Argv: []string{"sh", "-c", script}, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestProcess(t *testing.T) {
	t.Parallel()
	p := start(t, "echo hello; sleep 600 & wait")
	if err := errors.Join(p.Stop(), p.Cont(), p.Kill()); err != nil {
		t.Error(err)
	}
	if _, ok := errors.AsType[*exec.ExitError](p.Wait(time.Second)); !ok {
		t.Errorf("a process that was killed ended with %v", p.Wait(time.Second))
	}
	q := start(t, "trap 'echo bye; exit 3' TERM; echo hello; sleep 600 & wait")
	err := q.Await(t.Context(), time.Minute, func(context.Context) error {
		if !strings.Contains(q.Log(), "hello") {
			return errors.New("not yet")
		}
		return nil
	})
	if err := errors.Join(err, q.Ask(syscall.SIGTERM)); err != nil {
		t.Error(err)
	}
	if log := q.Log(); log != "hello\nbye\n" {
		t.Errorf("the log is %q", log)
	}
	if err := errors.Join(p.End(), q.End()); err != nil {
		t.Errorf("their end was asked for: %v", err)
	}
}

// A process that ends by itself is an error: of Await, and otherwise of End.
func TestEndedByItself(t *testing.T) {
	t.Parallel()
	p := start(t, "echo because; exit 3")
	<-p.Ended()
	if err := p.End(); !errors.Is(err, launch.ErrEnded) {
		t.Errorf("it ended: %v", err)
	}
	never := func(context.Context) error { return context.DeadlineExceeded }
	if err := p.Await(t.Context(), time.Minute, never); !errors.Is(err, launch.ErrEnded) || !strings.HasSuffix(err.Error(), "\nbecause") {
		t.Errorf("it is waited for: %v", err)
	}
	if err := p.End(); err != nil {
		t.Errorf("its end was reported: %v", err)
	}
	q := start(t, "sleep 600")
	if err := q.Await(t.Context(), time.Millisecond, never); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, launch.ErrEnded) {
		t.Errorf("it is not ready: %v", err)
	}
	if err := q.Wait(time.Millisecond); err == nil || q.Gone() {
		t.Errorf("it is still there: %v", err)
	}
}

func TestFreeAddr(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for range 20 {
		addr, err := launch.FreeAddr()
		if err != nil || seen[launch.Port(addr)] {
			t.Errorf("%s was given twice, or %v", addr, err)
		}
		seen[launch.Port(addr)] = true
	}
}

// The kinds that need no program of this repository start, and come back with their data after a
// crash.
func TestKinds(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for _, kind := range []string{"redis", "redlock", "zookeeper", "postgres+advisory", "mysql+getlock"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "hf-") //nolint:usetesting // other accounts cannot enter t.TempDir
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = os.RemoveAll(dir) }()
			g, err := launch.Kinds()[kind](t.Context(), launch.Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := g.End(); err != nil {
					t.Error(err)
				}
			}()
			if err := g.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			s := g.Servers[0]
			if !strings.HasPrefix(g.URL, kind+"://") || !strings.Contains(g.URL, s.Addr()) || kind != "redlock" && s.URL != g.URL {
				t.Errorf("the URL of %s is %s, alone %s", s.Addr(), g.URL, s.URL)
			}
			for _, end := range []func() error{s.Kill, s.Shutdown} {
				if err := errors.Join(end(), s.Start(t.Context())); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if s, err := launch.Redis(launch.Options{Dir: t.TempDir()}); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("%v, %v", s, err)
	}
	s, err := launch.Redis(launch.Options{Dir: t.TempDir(), Programs: map[string][]string{"redis-server": {filepath.Join(t.TempDir(), "redis")}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Launch(), s.Kill(), s.End()); err == nil || !strings.Contains(err.Error(), "not installed") {
		t.Errorf("a program that is not there: %v", err)
	}
}

// Servers of the sources are found from the working folder alone.
func TestNoSource(t *testing.T) {
	t.Chdir(t.TempDir())
	if path, err := launch.Built(t.Context(), "etcd"); !errors.Is(err, launch.ErrNoSource) {
		t.Errorf("%s, %v", path, err)
	}
}
