//go:build unix

package leasetest

import (
	"context"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// BenchmarkPairs measures acquire and release by goroutines that run concurrently: each on a
// lock of its own, or all on one.
func BenchmarkPairs(b *testing.B, v backend.Backend, goroutines int, one bool, server func() time.Duration) {
	b.Helper()
	id := backend.NewSessionID()
	if err := v.OpenSession(b.Context(), backend.SessionRequest{ID: id, TTL: time.Hour}); err != nil {
		b.Fatal(err)
	}
	Parallel(b, goroutines, server, func(ctx context.Context, name string) error {
		if one {
			name = "one"
		}
		req := backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: id, Wait: one}
		if _, err := v.Acquire(ctx, req); err != nil {
			return err
		}
		return v.Release(ctx, backend.ReleaseRequest{Name: name, Lease: req.Lease, Session: id})
	})
}

// Parallel runs f b.N times over that many goroutines, each with a name of its own. It also
// reports the processor time, the server's and ours: on a busy machine that is what can be
// compared.
func Parallel(b *testing.B, goroutines int, server func() time.Duration, f func(ctx context.Context, name string) error) {
	b.Helper()
	ctx := b.Context()
	var n, done atomic.Int64
	ended := make(chan error, goroutines)
	servers, ours := server(), spent(b)
	b.ReportAllocs()
	b.ResetTimer()
	for g := range goroutines {
		go func() {
			name := "bench/" + strconv.Itoa(g)
			for n.Add(1) <= int64(b.N) {
				if err := f(ctx, name); err != nil {
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
	b.ReportMetric(pairs/b.Elapsed().Seconds(), "pairs/s")
	b.ReportMetric(float64((server()-servers).Microseconds())/pairs, "server-us/pair")
	b.ReportMetric(float64((spent(b)-ours).Microseconds())/pairs, "client-us/pair")
}

// spent is the processor time that this process has used.
func spent(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
