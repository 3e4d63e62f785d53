//go:build unix

package launch_test

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
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
