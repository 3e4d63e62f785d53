package play_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/cli"
	"github.com/holdfast-io/holdfast/internal/testserver"
	"github.com/holdfast-io/holdfast/verify"
	"github.com/holdfast-io/holdfast/verify/history"
	"github.com/holdfast-io/holdfast/verify/play"
)

// The workers are this very binary, and so is our server.
const (
	workerEnv = "HOLDFAST_VERIFY_TEST_WORKER"
	serverEnv = "HOLDFAST_VERIFY_TEST_SERVER"
)

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		os.Exit(cli.Run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	if os.Getenv(workerEnv) != "" {
		if err := play.Worker(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func workers() []string { return []string{"/usr/bin/env", workerEnv + "=1", os.Args[0]} }

// played plays and reads the history back.
func played(t *testing.T, cfg play.Config) *history.History {
	t.Helper()
	var text bytes.Buffer
	cfg.History, cfg.Log = &text, func(s string) { t.Log(s) }
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute+cfg.For)
	defer cancel()
	err := play.Run(ctx, cfg)
	keep(t, text.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	h, err := history.Read(&text)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// keep keeps a history where HOLDFAST_VERIFY_KEEP says, and that of a test which fails in
// any case, and says where: what happened once may take days to happen again.
func keep(t *testing.T, text []byte) {
	t.Helper()
	text = bytes.Clone(text)
	dir := os.Getenv("HOLDFAST_VERIFY_KEEP")
	t.Cleanup(func() {
		var err error
		switch {
		case dir == "" && !t.Failed():
			return
		case dir == "":
			dir, err = os.MkdirTemp("", "holdfast-verify-failed-") //nolint:usetesting // it outlives the test
		}
		path := filepath.Join(dir, filepath.Base(t.Name())+".jsonl")
		if err = errors.Join(err, os.WriteFile(path, text, 0o600)); err != nil {
			t.Logf("the history is lost: %v", err)
			return
		}
		t.Logf("the history: holdfast verify check %s", path)
	})
}

// passes plays and wants a pass.
func passes(t *testing.T, cfg play.Config) *verify.Report {
	t.Helper()
	return judged(t, played(t, cfg))
}

// judged wants a pass.
func judged(t *testing.T, h *history.History) *verify.Report {
	t.Helper()
	r := verify.Judge(t.Context(), h, verify.Options{})
	for _, c := range r.Checks {
		t.Logf("%-9s %s: %s", c.Verdict, c.ID, c.Summary)
		for _, f := range c.Details {
			t.Log("  ", f.Text)
		}
	}
	if r.Verdict != verify.Pass {
		t.Errorf("the verdict is %q", r.Verdict)
	}
	return r
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	r := passes(t, play.Config{
		URL: "sqlite://" + filepath.Join(testserver.Dir(t), "locks.db"), Worker: workers(),
		For: 6 * time.Second, Seed: 1, Profile: play.Torture, TTL: time.Second,
	})
	if r.Counts.Kills == 0 || r.Counts.Freezes == 0 || r.Counts.Losses == 0 {
		t.Errorf("nothing was hurt: %+v", r.Counts)
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	r := passes(t, play.Config{URL: "memory://", For: 6 * time.Second, Seed: 1, Profile: play.Torture, TTL: time.Second})
	if r.Counts.Kills == 0 || r.Counts.Network == 0 || r.Counts.Losses == 0 {
		t.Errorf("nothing was hurt: %+v", r.Counts)
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t, "--maxmemory-policy", "allkeys-lru", "--appendfsync", "everysec")
	r := passes(t, play.Config{
		URL: "redis://" + server.Addr() + "?quarantine=off", Worker: workers(),
		For: 8 * time.Second, Seed: 1, Profile: play.Torture, TTL: time.Second,
	})
	if r.Counts.Kills == 0 || r.Counts.Freezes == 0 || r.Counts.Network == 0 || r.Counts.Losses == 0 {
		t.Errorf("nothing was hurt: %+v", r.Counts)
	}
	for _, want := range []string{"evict", "restarts"} {
		if !strings.Contains(strings.Join(r.Header.Warnings, "\n"), want) {
			t.Errorf("no warning says %q: %q", want, r.Header.Warnings)
		}
	}
	// Nothing is left but what tokens need, and what keeps late requests from coming back.
	for _, key := range server.Do("KEYS", "*").([]any) {
		if kind := strings.SplitN(fmt.Sprint(key), ":", 3)[1]; !strings.Contains("m f d v", kind) {
			t.Errorf("the key %v is left", key)
		}
	}
}

// A worker that begins while the backend is away waits for it, and longer than for a lock.
func TestWorkerBeginsWithoutABackend(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	relay := chaos.Start(t, server.Addr())
	relay.Refuse()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in, orders := io.Pipe()
	said, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(play.Worker(ctx, in, out), out.Close()) }()
	go func() {
		job, _ := json.Marshal(map[string]any{
			"Worker": "1.1", "URL": "redis://" + relay.Addr() + "?quarantine=off", "Prefix": "p", "TTL": time.Second, "Tasks": 1,
			"Pause": time.Millisecond, "Patience": 2 * time.Second, "Gens": []int{0, 0, 0, 0},
		})
		_, _ = fmt.Fprintf(orders, "%s\n", job)
	}()
	time.AfterFunc(3*time.Second, relay.Heal)
	lines := bufio.NewScanner(said)
	if !lines.Scan() || !strings.Contains(lines.Text(), `"e":"start"`) {
		t.Fatalf("the worker said %q", lines.Text())
	}
	go func() {
		for lines.Scan() {
			continue
		}
	}()
	_ = orders.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
