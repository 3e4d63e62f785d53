package holdfast_test

import (
	"context"
	"runtime/metrics"
	"testing"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

// mostAllocations is what the common case may allocate in all: one caller, one exclusive lock that is
// free, no waiters, and memlock, which allocates once itself.
const mostAllocations = 6

// The common case allocates little, and starts no goroutine, while it acquires and releases a lock, and
// while the lock is held.
func TestCostOfAPair(t *testing.T) { //nolint:paralleltest // it counts the allocations of the process
	store := memlock.New()
	defer store.Close()
	c, err := holdfast.New(store, holdfast.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pair := func() {
		lock, err := c.Acquire(ctx, "order:123")
		if err == nil {
			err = lock.Release(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const pairs = 10_000
	pair() // opens the session
	before := goroutinesCreated(t)
	n := testing.AllocsPerRun(pairs, pair)
	if n > mostAllocations+raceAllocations {
		t.Errorf("a pair allocates %g times; want %d at most", n, mostAllocations+raceAllocations)
	}
	// The runtime and the renewer start some from time to time.
	if started := goroutinesCreated(t) - before; started > pairs/100 {
		t.Errorf("%d pairs started %d goroutines", pairs, started)
	}
}

// goroutinesCreated returns how many goroutines the process has started so far.
func goroutinesCreated(t *testing.T) uint64 {
	t.Helper()
	sample := []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		t.Fatal("the runtime does not count goroutines")
	}
	return sample[0].Value.Uint64()
}
