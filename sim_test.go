package holdfast_test

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/simulate"
)

// TestSimulation simulates four hours, one with -short. HOLDFAST_SIMULATE is how long to continue, by the wall
// clock, with another seed for each day, beginning with SEED: see make simulate.
func TestSimulation(t *testing.T) {
	t.Parallel()
	simulate.Hours(t, func(uint64) func() backend.Backend { return memory() })
	if long, err := time.ParseDuration(os.Getenv("HOLDFAST_SIMULATE")); err == nil {
		t.Run("long", func(t *testing.T) {
			t.Parallel()
			simulateFor(t, long)
		})
	}
}

// simulateFor simulates day after day on all processors, and reports how many.
func simulateFor(t *testing.T, long time.Duration) {
	t.Helper()
	const piece = 24 * time.Hour
	first, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), "1"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	// Little memory is alive, and collecting it is cheap: a heap about as large as the processor's
	// cache is a third faster than one that is rarely collected.
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(int64(runtime.GOMAXPROCS(0)) * 64 << 20))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	begun := time.Now()
	var next, days, calls, grants atomic.Int64
	var work sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		work.Go(func() {
			for time.Since(begun) < long && !t.Failed() {
				seed := first + uint64(next.Add(1)) - 1
				t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c, g := simulate.Run(t, seed, piece, paceOf(seed), memory())
						calls.Add(c)
						grants.Add(g)
						days.Add(1)
					})
				})
			}
		})
	}
	work.Wait()
	took := time.Since(begun)
	const year = 365.25
	years := float64(days.Load()) / year
	t.Logf("%.2f simulated years in %s on %d processors, seeds from %d: %d lock operations, %d grants, %.0f times as fast as time, %.0f operations a second",
		years, took.Round(time.Second), runtime.GOMAXPROCS(0), first, calls.Load(), grants.Load(),
		float64(days.Load())*float64(piece)/float64(took), float64(calls.Load())/took.Seconds())
}

// paceOf returns how slow a day is. On most days leases have four minutes and are held for one.
// Every twenty-fourth day is as crowded as possible, with leases of 10 s. About half of the
// operations are of each kind.
func paceOf(seed uint64) int {
	const slow = 24
	if seed%slow == 0 {
		return 1
	}
	return slow
}

// memory returns what opens values of a new store.
func memory() func() backend.Backend {
	store := memlock.NewStore()
	return func() backend.Backend { return store.Open() }
}
