package engines_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/bench/engines"
	"github.com/holdfast-io/holdfast/internal/leaktest"
)

// asWorker turns this program into one of the processes of the bench.
const asWorker = "HOLDFAST_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) == "" {
		leaktest.Main(m)
		return
	}
	if err := bench.Work(context.Background(), os.Stdin, os.Stdout, findWithEverybody); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// findWithEverybody adds a contender that grants the lock to every caller.
func findWithEverybody(ctx context.Context, url, _ string) (*bench.Engine, error) {
	e, err := engines.Open(ctx, url)
	if err == nil {
		e.Contenders = append(e.Contenders, everybody())
	}
	return e, err
}

func everybody() bench.Contender {
	return bench.Contender{Name: "everybody", Kind: bench.KindPeer, Can: bench.CanWait, Open: func(context.Context, bench.Config) (bench.Locker, error) {
		return everybodyLocker{}, nil
	}}
}

type everybodyLocker struct{}

func (everybodyLocker) Lock(context.Context, string) (bench.Held, error) {
	return bench.Held{Unlock: func(context.Context) error { return nil }}, nil
}
func (everybodyLocker) Close(context.Context) error { return nil }

func worker() []string { return []string{"env", asWorker + "=1", os.Args[0]} }

// Many processes on one file: no lock is held twice, and a contender that grants it twice is
// detected.
func TestProcesses(t *testing.T) {
	t.Parallel()
	e, err := findWithEverybody(t.Context(), "sqlite://"+filepath.Join(t.TempDir(), "locks.db"), "")
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, e)
	few := true // the machine stood still: for longer and longer
	for budget := 200 * time.Millisecond; few && !t.Failed() && budget < 10*time.Second; budget *= 2 {
		r, err := bench.Run(t.Context(), []*bench.Engine{e}, bench.Options{
			Rounds: 1, Budget: budget, Only: []string{"procs/*/*"}, Worker: worker(),
		})
		if err != nil {
			t.Fatal(err)
		}
		few = false
		for _, scenario := range []string{"procs/4x8/own", "procs/4x8/one"} {
			x := r.Find("sqlite", scenario, "holdfast")
			if x == nil || x.Failed != "" || x.Figures[bench.DoubleHolds]+x.Figures[bench.TokenFaults] != 0 {
				t.Fatalf("%s: %+v", scenario, x)
			}
			few = few || x.Figures[bench.Grants] == 0
		}
		if x := r.Find("sqlite", "procs/4x8/own", "everybody"); x.Failed != "" || x.Figures[bench.DoubleHolds] != 0 {
			t.Errorf("each worker has a lock of its own: %q %v", x.Failed, x.Figures)
		}
		x := r.Find("sqlite", "procs/4x8/one", "everybody")
		if x.Failed != "" {
			t.Errorf("all workers held the lock concurrently: %q", x.Failed)
		}
		few = few || x.Figures[bench.DoubleHolds] == 0
	}
	if few {
		t.Error("no grants, or no double holds where all workers held the lock concurrently")
	}
}

// A process that cannot carry out its order says why.
func TestProcessFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		url    string
		worker []string
		told   string
	}{
		"no such program":  {"sqlite://" + filepath.Join(t.TempDir(), "locks.db"), []string{"/nowhere/holdfast"}, "/nowhere/holdfast"},
		"no such store":    {"nope://", worker(), "nope"},
		"ends immediately": {"sqlite://" + filepath.Join(t.TempDir(), "locks.db"), []string{"true"}, "process"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := &bench.Engine{Name: "test", URL: c.url, Contenders: []bench.Contender{engines.Ours()}, Close: func() error { return nil }}
			r, err := bench.Run(t.Context(), []*bench.Engine{e}, bench.Options{
				Rounds: 1, Budget: 10 * time.Millisecond, Only: []string{"procs/4x8/one"}, Worker: c.worker,
			})
			if err != nil {
				t.Fatal(err)
			}
			if x := r.Find("test", "procs/4x8/one", "holdfast"); !strings.Contains(x.Failed, c.told) {
				t.Errorf("%q does not tell %q", x.Failed, c.told)
			}
		})
	}
}

// Without a worker command, and on a store of one process, these scenarios are skipped.
func TestNoProcesses(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]bench.Options{"no command": {}, "private": {Worker: worker()}} {
		e := engines.Memory()
		e.Private = name == "private"
		o.Only = []string{"procs/*/*"}
		r, err := bench.Run(t.Context(), []*bench.Engine{e}, o)
		if err := errors.Join(err, e.Close()); err != nil {
			t.Fatal(err)
		}
		if len(r.Results) != 0 {
			t.Errorf("%s: %+v", name, r.Results)
		}
	}
}
