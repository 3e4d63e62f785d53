package redislock_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// memory starts a server that writes nothing to disk, to measure the protocol and not the
// disk.
func memory(b *testing.B) *testserver.RedisServer {
	b.Helper()
	return testserver.Redis(b, "--appendonly", "no")
}

// BenchmarkPairs is acquire and release of an uncontended lock.
func BenchmarkPairs(b *testing.B) {
	for _, goroutines := range []int{1, 8, 64} {
		b.Run("goroutines="+strconv.Itoa(goroutines), func(b *testing.B) {
			s := memory(b)
			v := open(b, s, redislock.Config{Quarantine: redislock.NoQuarantine})
			id := session(b, v, time.Hour)
			parallel(b, s, goroutines, func(name string) error {
				req := backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: id}
				if _, err := v.Acquire(b.Context(), req); err != nil {
					return err
				}
				return v.Release(b.Context(), backend.ReleaseRequest{Name: name, Lease: req.Lease, Session: id})
			})
		})
	}
}

// BenchmarkClientPairs is BenchmarkPairs through the client, as programs use it.
func BenchmarkClientPairs(b *testing.B) {
	for _, goroutines := range []int{1, 8, 64} {
		b.Run("goroutines="+strconv.Itoa(goroutines), func(b *testing.B) {
			s := memory(b)
			c, err := holdfast.New(open(b, s, redislock.Config{Quarantine: redislock.NoQuarantine}), holdfast.Config{})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = c.Close(context.WithoutCancel(b.Context())) })
			parallel(b, s, goroutines, func(name string) error {
				lock, err := c.Acquire(b.Context(), name)
				if err != nil {
					return err
				}
				return lock.Release(b.Context())
			})
		})
	}
}

// BenchmarkRawPairs is the least that can be called a lock on Redis: SET NX PX, and a script
// that compares and deletes. No queue, no token, no session.
func BenchmarkRawPairs(b *testing.B) {
	del := rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
	for _, goroutines := range []int{1, 8, 64} {
		b.Run("goroutines="+strconv.Itoa(goroutines), func(b *testing.B) {
			s := memory(b)
			c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}, ForceSingleClient: true})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			parallel(b, s, goroutines, func(name string) error {
				id := string(backend.NewLeaseID())
				if err := c.Do(b.Context(), c.B().Set().Key(name).Value(id).Nx().PxMilliseconds(30000).Build()).Error(); err != nil {
					return err
				}
				return del.Exec(b.Context(), c, []string{name}, []string{id}).Error()
			})
		})
	}
}

// BenchmarkHandOver is one lock that 64 goroutines always contend for.
func BenchmarkHandOver(b *testing.B) {
	s := memory(b)
	v := open(b, s, redislock.Config{Quarantine: redislock.NoQuarantine})
	id := session(b, v, time.Hour)
	parallel(b, s, 64, func(string) error {
		req := backend.AcquireRequest{Name: "one", Lease: backend.NewLeaseID(), Session: id, Wait: true}
		if _, err := v.Acquire(b.Context(), req); err != nil {
			return err
		}
		return v.Release(b.Context(), backend.ReleaseRequest{Name: "one", Lease: req.Lease, Session: id})
	})
}

// parallel is leasetest's, on one server.
func parallel(b *testing.B, s *testserver.RedisServer, goroutines int, f func(name string) error) {
	b.Helper()
	leasetest.Parallel(b, goroutines, s.CPU, func(_ context.Context, name string) error { return f(name) })
}
