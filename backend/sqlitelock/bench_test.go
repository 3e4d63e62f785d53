//go:build linux || darwin || freebsd

package sqlitelock_test

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
)

func mustOpen(tb testing.TB, path string, opts ...sqlitelock.Option) *sqlitelock.Backend {
	tb.Helper()
	b, err := sqlitelock.OpenWith(tb.Context(), path, opts...)
	if err != nil {
		tb.Fatalf("open: %v", err)
	}
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return b
}

func mustSession(tb testing.TB, b *sqlitelock.Backend, ttl time.Duration) backend.SessionID {
	tb.Helper()
	id := backend.NewSessionID()
	if err := b.OpenSession(tb.Context(), backend.SessionRequest{ID: id, TTL: ttl}); err != nil {
		tb.Fatalf("open session: %v", err)
	}
	return id
}

// BenchmarkOpen measures opening and closing a file that other values have open.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "locks.db")
	mustOpen(b, path)
	for b.Loop() {
		x, err := sqlitelock.Open(b.Context(), path, sqlitelock.Config{})
		if err != nil {
			b.Fatal(err)
		}
		if err := x.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPair measures an acquire and a release of a free lock.
func BenchmarkPair(b *testing.B) {
	for _, timed := range []bool{false, true} {
		for _, goroutines := range []int{1, 64} {
			b.Run(fmt.Sprintf("timed=%t/goroutines=%d", timed, goroutines), func(b *testing.B) {
				be := mustOpen(b, filepath.Join(b.TempDir(), "locks.db"))
				sess := mustSession(b, be, time.Hour)
				var n atomic.Int64
				b.SetParallelism(max(1, goroutines/2))
				run := func(name string) {
					req := backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: sess, Timed: timed}
					if timed {
						req.TTL = time.Minute
					}
					if _, err := be.Acquire(b.Context(), req); err != nil {
						b.Error(err)
					}
					if err := be.Release(b.Context(), backend.ReleaseRequest{Name: name, Lease: req.Lease, Session: sess}); err != nil {
						b.Error(err)
					}
				}
				if goroutines == 1 {
					for b.Loop() {
						run("lock")
					}
					return
				}
				b.RunParallel(func(pb *testing.PB) {
					name := fmt.Sprintf("lock-%d", n.Add(1))
					for pb.Next() {
						run(name)
					}
				})
			})
		}
	}
}
