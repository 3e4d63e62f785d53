package redlock_test

import (
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
)

// BenchmarkPairs is acquire and release of an uncontended lock, on five nodes that write
// nothing to disk. It reports the processor time of both sides: on a busy machine only that
// can be compared.
func BenchmarkPairs(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run("goroutines="+strconv.Itoa(goroutines), func(b *testing.B) {
			c := start(b, "--appendonly", "no")
			v, err := redlock.Open(b.Context(), c.url("quarantine=off"), redlock.Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = v.Close() }()
			c.parallel(b, goroutines, func(name string) error {
				req := backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute}
				if _, err := v.Acquire(b.Context(), req); err != nil {
					return err
				}
				return v.Release(b.Context(), backend.ReleaseRequest{Name: name, Lease: req.Lease})
			})
		})
	}
}

// parallel runs f b.N times over n goroutines, each with a name of its own.
func (c cluster) parallel(b *testing.B, goroutines int, f func(name string) error) {
	b.Helper()
	var n, done atomic.Int64
	ended := make(chan error, goroutines)
	for _, s := range c {
		s.ResetStats()
	}
	servers, ours := c.spent(), spent(b)
	b.ReportAllocs()
	b.ResetTimer()
	for g := range goroutines {
		go func() {
			name := "bench/" + strconv.Itoa(g)
			for n.Add(1) <= int64(b.N) {
				if err := f(name); err != nil {
					ended <- err
					return
				}
				done.Add(1)
			}
			ended <- nil
		}()
	}
	for range goroutines {
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}
	b.StopTimer()
	pairs := float64(done.Load())
	var requests, commands int64
	for _, s := range c {
		for name, n := range s.CommandStats() {
			commands += n
			switch name {
			case "eval", "evalsha", "fcall":
				requests += n
			}
		}
	}
	b.ReportMetric(pairs/b.Elapsed().Seconds(), "pairs/s")
	b.ReportMetric(float64((c.spent()-servers).Microseconds())/pairs, "servers-us/pair")
	b.ReportMetric(float64((spent(b)-ours).Microseconds())/pairs, "client-us/pair")
	b.ReportMetric(float64(requests)/pairs, "requests/pair")
	b.ReportMetric(float64(commands)/pairs, "commands/pair")
}

// spent returns the processor time that the nodes have used.
func (c cluster) spent() time.Duration {
	var d time.Duration
	for _, s := range c {
		d += s.CPU()
	}
	return d
}

// spent returns the processor time that this process has used.
func spent(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
