package runner

import (
	"bufio"
	"cmp"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/verify"
	"github.com/holdfast-io/holdfast/verify/history"
)

// The workers are this test binary.
const workerEnv = "HOLDFAST_VERIFY_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		if err := Worker(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

func workers() []string { return []string{"/usr/bin/env", workerEnv + "=1", os.Args[0]} }

// testRate is how many locks a test acquires per second, unless RATE is set: other tests run
// beside it.
const testRate = 400

// runResult is the result of a run.
type runResult struct {
	*verify.Report
	faults []history.Event // the faults that began
}

// runAndJudge runs and requires a pass.
func runAndJudge(t *testing.T, cfg Config) runResult {
	t.Helper()
	var out runResult
	rate, err := strconv.Atoi(cmp.Or(os.Getenv("RATE"), strconv.Itoa(testRate)))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Rate = rate
	referee := verify.NewReferee(t.Context(), verify.Options{Grace: 15 * time.Second}, nil) // the servers share the machine with other tests
	cfg.Log = func(s string) { t.Log(s) }
	file := recording(t)
	cfg.Record = func(e history.Event) error {
		if e.Kind == history.KindFault {
			out.faults = append(out.faults, e)
		}
		if file != nil {
			if err := file.Write(e); err != nil {
				return err
			}
		}
		return referee.Add(e)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute+cfg.For)
	defer cancel()
	err = Run(ctx, cfg)
	out.Report = referee.Report()
	for _, c := range out.Checks {
		t.Logf("%-9s %s: %s", c.Verdict, c.ID, c.Summary)
		for _, f := range c.Details {
			t.Log("  ", f.Text)
		}
	}
	if err != nil {
		keep(t, referee.Evidence())
		t.Fatal(err)
	}
	if out.Verdict != verify.Pass {
		keep(t, referee.Evidence())
		t.Errorf("the verdict is %q", out.Verdict)
	}
	return out
}

// recording returns a writer to the file of the whole history, in the folder that
// HOLDFAST_VERIFY_KEEP names, or nil.
func recording(t *testing.T) *history.Writer {
	t.Helper()
	dir := os.Getenv("HOLDFAST_VERIFY_KEEP")
	if dir == "" {
		return nil
	}
	f, err := os.Create(filepath.Join(dir, filepath.Base(t.Name())+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	out := bufio.NewWriterSize(f, 1<<20)
	t.Cleanup(func() {
		if err := errors.Join(out.Flush(), f.Close()); err != nil {
			t.Error(err)
		}
	})
	return history.NewWriter(out)
}

// keep saves the evidence for the failure of a test, and logs where: a rare failure may take
// days to occur again.
func keep(t *testing.T, h *history.History) {
	t.Helper()
	f, err := os.CreateTemp("", "holdfast-verify-failed-*.jsonl") //nolint:usetesting // it outlives the test
	if err != nil {
		t.Logf("the evidence is lost: %v", err)
		return
	}
	t.Logf("the evidence: holdfast verify check %s (%v)", f.Name(), errors.Join(history.Write(f, h), f.Close()))
}

func TestRedis(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t, "--maxmemory-policy", "allkeys-lru", "--appendfsync", "everysec")
	var r runResult
	for lasts := 6 * time.Second; ; lasts *= 2 { // on a busy machine the start of the workers may take most of a run
		r = runAndJudge(t, Config{
			URL: "redis://" + server.Addr() + "?quarantine=off", Worker: workers(), For: lasts, Seed: 1, Profile: Torture, TTL: time.Second,
		})
		if t.Failed() || min(r.Counts.Kills, r.Counts.Freezes, r.Counts.Network, r.Counts.Losses) > 0 {
			break
		}
		if lasts > 20*time.Second {
			t.Fatalf("no fault was injected: %+v", r.Counts)
		}
	}
	for _, want := range []string{"evict", "restarts"} {
		if !strings.Contains(strings.Join(r.Header.Warnings, "\n"), want) {
			t.Errorf("no warning says %q: %q", want, r.Header.Warnings)
		}
	}
	// Nothing is left except what tokens need, and what keeps late requests from being granted
	// again.
	for _, key := range server.Do("KEYS", "*").([]any) {
		if kind := strings.SplitN(fmt.Sprint(key), ":", 3)[1]; !strings.Contains("m f d v", kind) {
			t.Errorf("the key %v is left", key)
		}
	}
}

// A worker that starts while the backend is unavailable waits for it, and longer than for a
// lock.
func TestWorkerBeginsWithoutABackend(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	server := testserver.Redis(t)
	relay := chaos.Start(t, server.Addr())
	relay.Refuse()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in, orders := io.Pipe()
	said, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(Worker(ctx, in, out), out.Close()) }()
	go func() {
		job, _ := json.Marshal(map[string]any{
			"Worker": "1.1", "URL": "redis://" + relay.Addr() + "?quarantine=off", "Prefix": "p", "TTL": time.Second, "Tasks": 1,
			"Pause": time.Millisecond, "Patience": 2 * time.Second, "Gens": []int{0, 0, 0, 0},
		})
		_, _ = fmt.Fprintf(orders, "%s\n", job)
	}()
	time.AfterFunc(3*time.Second, relay.Heal)
	var first history.Event
	if err := gob.NewDecoder(said).Decode(&first); err != nil || first.Kind != history.KindStart {
		t.Fatalf("the worker said %+v, %v", first, err)
	}
	go func() { _, _ = io.Copy(io.Discard, said) }()
	_ = orders.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
