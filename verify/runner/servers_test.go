package runner_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/verify/history"
	"github.com/holdfast-io/holdfast/verify/runner"
)

// Servers that many runs use have faults in each, serve after it, and have ended in the end.
func TestServersAreKept(t *testing.T) {
	t.Parallel()
	servers, err := runner.StartServers(t.Context(), "redis", nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if ended {
			return
		}
		ended = true
		if err := servers.End(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	url, first := servers.URL(), servers.Pids()
	crashes := 0
	for seed := uint64(1); seed <= 2 || crashes == 0 && seed < 6 && !t.Failed(); seed++ {
		r := runAndJudge(t, runner.Config{Servers: servers, Worker: workers(), For: 6 * time.Second, Seed: seed, Profile: runner.Torture, TTL: time.Second})
		for _, e := range r.faults {
			if e.Text == "server crashed, 1" {
				crashes++
			}
		}
		s := make(sizes)
		look(t, "redis", url, s)
		if s["keys"] == 0 {
			t.Errorf("after round %d the servers have nothing of it: %v", seed, s)
		}
	}
	if crashes == 0 || servers.URL() != url || slices.Equal(servers.Pids(), first) {
		t.Errorf("%d crashes; %s was %s, processes %v were %v", crashes, servers.URL(), url, servers.Pids(), first)
	}
	end()
	if s := make(sizes); lookAtRedis(t.Context(), url, s) == nil {
		t.Errorf("they serve after their end: %v", s)
	}
}

func TestServersAreInPlaceOfAURL(t *testing.T) {
	t.Parallel()
	for _, cfg := range []runner.Config{
		{Servers: new(runner.Servers), URL: "memory://"},
		{Servers: new(runner.Servers), Cluster: "redis"},
	} {
		err := runner.Run(t.Context(), cfg)
		if bad, ok := errors.AsType[*backend.InvalidError](err); !ok || bad.Field != "servers" {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if s, err := runner.StartServers(t.Context(), "memory", nil); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("servers of memory: %v, %v", s, err)
	}
}

// A run that is interrupted leaves no process of its own, and no folder.
func TestInterruptedRunLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	cfg := torture(t, "redis", runner.Config{For: time.Minute, Seed: 1, Profile: runner.Torture})
	cfg.Record = func(history.Event) error { return nil }
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	cfg.Log = func(text string) {
		if strings.Contains(text, "faults for") {
			time.AfterFunc(3*time.Second, func() { cancel(interrupted) })
		}
	}
	if err := runner.Run(ctx, cfg); !errors.Is(err, interrupted) {
		t.Errorf("it ended with %v", err)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		if b, err := os.ReadFile(list); err == nil && len(b) > 0 {
			t.Errorf("it left the processes %s", b)
		}
	}
}
