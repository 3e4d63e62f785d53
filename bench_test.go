package holdfast_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

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
