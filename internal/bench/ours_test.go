package bench_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/bench"
)

func memory(t *testing.T) *bench.Engine {
	t.Helper()
	store := memlock.New()
	t.Cleanup(func() { _ = store.Close() })
	return engine(bench.Ours(func(context.Context, string) (backend.Backend, error) { return bench.Shared{Backend: store}, nil }))
}

// good fails the test unless the given number of scenarios succeeded, and no lock was held twice.
func good(t *testing.T, r *bench.Report, want int) {
	t.Helper()
	if len(r.Results) != want {
		t.Errorf("%d results, want %d", len(r.Results), want)
	}
	for _, x := range r.Results {
		if x.Failed != "" || x.Figures[bench.Grants] == 0 {
			t.Errorf("%s %s: %q %v", x.Scenario, x.Contender, x.Failed, x.Figures)
		}
	}
	if err := r.Verdict(); err != nil {
		t.Error(err)
	}
}

// Every kind of scenario runs on memory, and no lock is held twice.
func TestSmoke(t *testing.T) {
	t.Parallel()
	r, err := bench.Run(t.Context(), []*bench.Engine{memory(t)}, bench.Options{
		Rounds: 1, Budget: 5 * time.Millisecond,
		Only: []string{"own/8", "one/8", "one/8/1ms", "hand/2", "sessions/10", "shared/64", "permits/64"},
	})
	if err != nil {
		t.Fatal(err)
	}
	good(t, r, 7)
}

// Locks that are kept are measured too, and waiters.
//
//nolint:paralleltest // it counts the goroutines and the memory of the process
func TestStanding(t *testing.T) {
	r, err := bench.Run(t.Context(), []*bench.Engine{memory(t)}, bench.Options{
		Rounds: 1, Budget: time.Second, Only: []string{"renew/10000", "idle/1000"}, // the TTL is six times that
	})
	if err != nil {
		t.Fatal(err)
	}
	good(t, r, 2)
	f := r.Find("test", "renew/10000", "holdfast").Figures
	if f[bench.BytesEach] < 100 || f[bench.BytesEach] > 100_000 || f[bench.Goroutines] > 20 {
		t.Errorf("10,000 locks: %v", f)
	}
	f = r.Find("test", "idle/1000", "holdfast").Figures
	if f[bench.BytesEach] < 100 || f[bench.BytesEach] > 100_000 || f[bench.GoroutinesEach] > 2 {
		t.Errorf("1,000 waiters: %v", f)
	}
}
