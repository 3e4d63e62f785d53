package etcdlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// BenchmarkPairs measures acquire and release, each goroutine on a lock of its own. It compares
// them with etcd used without a library and with etcd's own.
func BenchmarkPairs(b *testing.B) {
	members := testserver.StartEtcd(b, testserver.EtcdOptions{Tick: 100})
	client, err := clientv3.New(clientv3.Config{Endpoints: testserver.Endpoints(members), Logger: zap.NewNop()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = client.Close() })
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("etcdlock/%d", n), func(b *testing.B) { benchmarkPairs(b, members, n, holdPair) })
		b.Run(fmt.Sprintf("timed/%d", n), func(b *testing.B) { benchmarkPairs(b, members, n, timedPair) })
		b.Run(fmt.Sprintf("one-lock/%d", n), func(b *testing.B) { benchmarkPairs(b, members, n, samePair) })
		b.Run(fmt.Sprintf("raw/%d", n), func(b *testing.B) {
			split(b, n, func(ctx context.Context, i int) error {
				key := fmt.Sprintf("raw/%d", i)
				_, err := client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(clientv3.OpPut(key, "x")).Commit()
				if err != nil {
					return err
				}
				_, err = client.Delete(ctx, key)
				return err
			})
		})
		b.Run(fmt.Sprintf("concurrency/%d", n), func(b *testing.B) {
			s, err := concurrency.NewSession(client)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			split(b, n, func(ctx context.Context, i int) error {
				m := concurrency.NewMutex(s, fmt.Sprintf("mutex/%d", i))
				if err := m.Lock(ctx); err != nil {
					return err
				}
				return m.Unlock(ctx)
			})
		})
	}
}

type pair func(ctx context.Context, b backend.Backend, s backend.SessionID, i int) error

func benchmarkPairs(b *testing.B, members []*testserver.Etcd, n int, p pair) {
	b.Helper()
	bk := open(b, members)
	defer func() { _ = bk.Close() }()
	id := backend.NewSessionID()
	if err := bk.OpenSession(b.Context(), backend.SessionRequest{ID: id, TTL: time.Minute}); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = bk.EndSession(context.WithoutCancel(b.Context()), id) }()
	split(b, n, func(ctx context.Context, i int) error { return p(ctx, bk, id, i) })
}

func holdPair(ctx context.Context, b backend.Backend, s backend.SessionID, i int) error {
	return acquireRelease(ctx, b, backend.AcquireRequest{Name: fmt.Sprintf("bench/%d", i), Session: s, Wait: true})
}

func timedPair(ctx context.Context, b backend.Backend, s backend.SessionID, i int) error {
	return acquireRelease(ctx, b, backend.AcquireRequest{
		Name: fmt.Sprintf("bench/%d", i), Session: s, Wait: true, Timed: true, TTL: time.Minute,
	})
}

func samePair(ctx context.Context, b backend.Backend, s backend.SessionID, _ int) error {
	return acquireRelease(ctx, b, backend.AcquireRequest{Name: "bench/same", Session: s, Wait: true})
}

func acquireRelease(ctx context.Context, b backend.Backend, req backend.AcquireRequest) error {
	req.Lease = backend.NewLeaseID()
	if _, err := b.Acquire(ctx, req); err != nil {
		return err
	}
	return b.Release(ctx, backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: req.Session})
}

// split runs f b.N times in n goroutines.
func split(b *testing.B, n int, f func(ctx context.Context, i int) error) {
	b.Helper()
	work := make(chan struct{}, b.N)
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	b.ReportAllocs()
	b.ResetTimer()
	done := make(chan error, n)
	for i := range n {
		go func() {
			for range work {
				if err := f(b.Context(), i); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range n {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
}
