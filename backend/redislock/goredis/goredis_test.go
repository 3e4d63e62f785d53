package goredis_test

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/backend/redislock/goredis"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // it logs each connection that cannot be made
	leaktest.Main(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// connect returns a client as a program has it, with all defaults.
func connect(t testing.TB, options redis.UniversalOptions) redis.UniversalClient {
	t.Helper()
	client := redis.NewUniversalClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// single returns the client of one server.
func single(t testing.TB, addr string) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// answered is the time-out of requests, unless it is what is tested: a server answers nothing while its disk stands still.
const answered = leasetest.Patience / 2

func open(t *testing.T, client redis.UniversalClient, cfg redislock.Config) *redislock.Backend {
	t.Helper()
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, answered)
	b, err := goredis.New(client, cfg)
	return leasetest.Opened(t, b, err)
}

// settled waits until the server grants after its start.
func settled(t *testing.T, b *redislock.Backend) {
	t.Helper()
	req := backend.AcquireRequest{Name: "settled", Lease: backend.NewLeaseID(), Timed: true, TTL: redislock.MinTTL}
	leasetest.Succeeds(t, func() error {
		_, err := b.Acquire(t.Context(), req)
		return err
	})
	_ = b.Release(t.Context(), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease}) // it may have ended
}

// quick starts a server that grants immediately and keeps its data.
func quick(t *testing.T, args ...string) (*testserver.RedisServer, redislock.Config) {
	t.Helper()
	s := testserver.Redis(t, args...)
	cfg := redislock.Config{Quarantine: time.Millisecond, RequestTimeout: answered}
	settled(t, open(t, single(t, s.Addr()), cfg))
	return s, cfg
}

// scriptsOnly returns arguments of a server without functions, like those before Redis 7.
func scriptsOnly() []string {
	return []string{"--user", "default", "on", "nopass", "~*", "&*", "+@all", "-fcall", "-function"}
}

// The program as a function, without watchers, so that locks are thin; and as a script.
func TestConformance(t *testing.T) {
	t.Parallel()
	for form, args := range map[string][]string{"function": nil, "script": scriptsOnly()} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			s := testserver.Redis(t, args...)
			open := opening(t, single(t, s.Addr()), redislock.Config{Quarantine: time.Second})
			if form == "function" {
				watched := open
				open = func(t backendtest.T) backend.Backend { return leasetest.Unwatched{Backend: watched(t)} }
			}
			backendtest.Run(t, backendtest.Harness{
				Only:       leasetest.Transport(),
				Open:       open,
				Restart:    func(backendtest.T) { s.Restart() },
				NoSlowDisk: "package redislock has the same server on one",
			})
		})
	}
}

// opening returns what opens one more backend value, when the server grants.
func opening(t *testing.T, client redis.UniversalClient, cfg redislock.Config) func(backendtest.T) backend.Backend {
	t.Helper()
	cfg.RequestTimeout = answered
	settled(t, open(t, client, cfg))
	return func(t backendtest.T) backend.Backend {
		b, err := goredis.New(client, cfg)
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		return b
	}
}

func groupConformance(t *testing.T, client redis.UniversalClient, replicas int) {
	t.Helper()
	backendtest.Run(t, backendtest.Harness{
		Only:      leasetest.Transport(),
		Open:      opening(t, client, redislock.Config{Quarantine: 100 * time.Millisecond, Replicas: replicas}),
		NoRestart: "it keeps clear of leases for their longest TTL, which some cases make a day",
	})
}

// A Cluster of three masters.
func TestConformanceCluster(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3)
	groupConformance(t, connect(t, redis.UniversalOptions{Addrs: addrs(c.Masters()), IsClusterMode: true}), 0)
}

// Sentinels, without WAIT and with it.
func TestConformanceSentinel(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for name, replicas := range map[string]int{"alone": 0, "replicas": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := testserver.StartRedisSentinels(t)
			groupConformance(t, connect(t, redis.UniversalOptions{Addrs: strings.Split(g.Addrs(), ","), MasterName: testserver.SentinelMaster}), replicas)
		})
	}
}

func addrs(servers []*testserver.RedisServer) []string {
	return strings.Split(testserver.RedisAddrs(servers), ",")
}
