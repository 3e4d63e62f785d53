package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

// diary records what hooks were called with.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines)
}

type callKey struct{}

// Each hook has the values of the context of its call. Hooks run in the order of the events. A hook
// that blocks delays no call, no renewal and no loss.
func TestHooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, store := newFaults(t)
		var d diary
		resume := make(chan struct{})
		c := newClient(t, f, holdfast.Config{TTL: 9 * time.Second, Hooks: &holdfast.Hooks{
			Acquired: func(ctx context.Context, e holdfast.AcquiredEvent) {
				<-resume
				d.note("acquired %s by %v, %v", e.Lock.Name, ctx.Value(callKey{}), ctx.Err())
			},
			Failed: func(ctx context.Context, e holdfast.FailedEvent) {
				d.note("failed %s by %v: %s after %s", e.Name, ctx.Value(callKey{}), e.Result, e.Waited)
			},
			Waiting:  func(_ context.Context, delta int) { d.note("waiting %+d", delta) },
			Released: func(_ context.Context, e holdfast.ReleasedEvent) { d.note("released %s after %s", e.Lock.Name, e.Held) },
			Lost: func(ctx context.Context, e holdfast.LostEvent) {
				d.note("lost %s of %v: %s", e.Lock.Name, ctx.Value(callKey{}), e.Cause)
			},
		}})
		by := func(who string) context.Context { return context.WithValue(t.Context(), callKey{}, who) }
		a, err := c.Acquire(by("ann"), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := a.Err(); err != nil {
			t.Errorf("while a hook blocked, the lock was lost: %v", err)
		}
		if _, err := c.Acquire(by("bob"), "a", holdfast.Wait(time.Second)); !errors.Is(err, holdfast.ErrHeld) {
			t.Error(err)
		}
		if err := a.Release(t.Context()); err != nil {
			t.Error(err)
		}
		b, err := c.Acquire(by("cid"), "b")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := openStore(t, store).Break(t.Context(), backend.BreakRequest{Name: "b", Reason: "test"}); err != nil {
			t.Fatal(err)
		}
		<-b.Context().Done()
		if got := d.all(); !slices.Equal(got, []string{"waiting +1"}) {
			t.Errorf("hooks overtook one that blocks: %q", got)
		}
		close(resume)
		synctest.Wait()
		want := []string{
			"waiting +1", "acquired a by ann, <nil>", "waiting -1",
			"waiting +1", "waiting -1", "failed a by bob: held after 1s", "released a after 1m1s",
			"waiting +1", "acquired b by cid, <nil>", "waiting -1", "lost b of cid: broken",
		}
		if got := d.all(); !slices.Equal(got, want) {
			t.Errorf("the hooks were called with\n%q, want\n%q", got, want)
		}
	})
}

// Close waits for the hooks, and ends their contexts when its own has ended.
func TestCloseWaitsForHooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		var d diary
		c := newClient(t, f, holdfast.Config{Hooks: &holdfast.Hooks{Acquired: func(ctx context.Context, _ holdfast.AcquiredEvent) {
			<-ctx.Done()
			d.note("%v", ctx.Err())
		}}})
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := c.Acquire(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		cancel() // ends the call, not the hook
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Minute {
			t.Errorf("Close gave %v after %s", err, time.Since(begun))
		}
		synctest.Wait()
		if got := d.all(); !slices.Equal(got, []string{"context canceled"}) {
			t.Errorf("the context of the hook ended with %q", got)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("a second Close gave %v", err)
		}
	})
}

// Hooks for which there is no room are dropped and counted. The sum of Waiting is right in the end.
func TestDroppedHooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		resume := make(chan struct{})
		called, waiting := 0, 0
		c := newClient(t, f, holdfast.Config{Hooks: &holdfast.Hooks{
			Waiting: func(_ context.Context, delta int) {
				<-resume
				called, waiting = called+1, waiting+delta
			},
		}})
		const calls = 2500
		for range calls {
			if err := mustAcquire(t, c, "a").Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		lock := mustAcquire(t, c, "a")
		dropped := c.Stats().DroppedHooks
		close(resume)
		synctest.Wait()
		if called+int(dropped) != 2*(calls+1) || dropped == 0 {
			t.Errorf("%d called and %d dropped of %d", called, dropped, 2*(calls+1))
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustAcquire(t, c, "b")
		synctest.Wait()
		if waiting != 0 {
			t.Errorf("in the end %d wait", waiting)
		}
	})
}

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
	most := mostAllocations
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		most++ // crypto/rand.Text then keeps its buffer on the heap
	}
	if n > float64(most) {
		t.Errorf("a pair allocates %g times; want %d at most", n, most)
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

// The cost of the client itself: the backend is in the process and answers immediately.
func BenchmarkAcquireRelease(b *testing.B) {
	for _, parallel := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", parallel), func(b *testing.B) {
			store := memlock.New()
			defer store.Close()
			c, err := holdfast.New(store, holdfast.Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close(b.Context())
			b.ReportAllocs()
			b.ResetTimer()
			var all sync.WaitGroup
			for i := range parallel {
				all.Go(func() {
					ctx, name := b.Context(), fmt.Sprintf("lock:%d", i)
					for range (b.N + i) / parallel {
						lock, err := c.Acquire(ctx, name)
						if err == nil {
							err = lock.Release(ctx)
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// BenchmarkLeaseMemory reports the bytes that a held lease takes in the client and in the memory
// backend together.
func BenchmarkLeaseMemory(b *testing.B) {
	store := memlock.New()
	defer store.Close()
	c, err := holdfast.New(store, holdfast.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(b.Context())
	names := make([]string, 100_000)
	for i := range names {
		names[i] = fmt.Sprintf("lock-%d", i)
	}
	before, goroutines := heap(), runtime.NumGoroutine()
	locks := make(holdfast.Locks, len(names))
	for i, name := range names {
		if locks[i], err = c.Acquire(b.Context(), name); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(heap()-before)/float64(len(names)), "B/lease")
	b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
	runtime.KeepAlive(locks)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
