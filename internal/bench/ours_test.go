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
		Only: []string{"own/8", "one/8", "one/8/1ms", "sessions/10"},
	})
	if err != nil {
		t.Fatal(err)
	}
	good(t, r, 4)
}

// What the server is sent for locks that are kept, and for waiters, is counted.
func TestStanding(t *testing.T) {
	t.Parallel()
	e := memory(t)
	e.Meter = func(context.Context) (func() (int64, error), error) {
		return func() (int64, error) { return 500, nil }, nil
	}
	r, err := bench.Run(t.Context(), []*bench.Engine{e}, bench.Options{Rounds: 1, Budget: 500 * time.Millisecond, Only: []string{"renew/10000", "idle/1000"}})
	if err != nil {
		t.Fatal(err)
	}
	good(t, r, 2)
	for _, x := range r.Results {
		if n := x.Figures[bench.RequestsPerSecond]; n <= 0 || n > 167 { // the TTL is three seconds
			t.Errorf("%s: %g requests a second", x.Scenario, n)
		}
	}
}
