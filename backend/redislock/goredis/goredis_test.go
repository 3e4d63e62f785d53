package goredis_test

import (
	"cmp"
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/backend/redislock/goredis"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
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

// The same cases as package redislock has, on the same servers.
func TestConformance(t *testing.T) {
	t.Parallel()
	for form, args := range map[string][]string{"function": nil, "script": scriptsOnly()} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			s, disk := testserver.WithSlowDisk(t, testserver.Redis(t, args...))
			client, cfg := single(t, s.Addr()), redislock.Config{Quarantine: time.Second, RequestTimeout: leasetest.Patience / 2}
			settled(t, open(t, client, cfg))
			backendtest.Run(t, backendtest.Harness{
				Holders:  holders(),
				Open:     func(t backendtest.T) backend.Backend { return opened(t, client, cfg, nil) },
				Restart:  func(backendtest.T) { s.Restart() },
				SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
			})
		})
	}
}

func opened(t backendtest.T, client redis.UniversalClient, cfg redislock.Config, wrap func(program.Conn) program.Conn) backend.Backend {
	t.Helper()
	b, err := goredis.New(client, cfg)
	if wrap != nil && err == nil {
		_ = b.Close()
		b, err = goredis.Through(client, cfg, wrap)
	}
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return b
}

// The whole suite without watchers, so that locks are thin: all, and some, where the others are inflated behind the
// back of the client that took them.
func TestConformanceThin(t *testing.T) {
	t.Parallel()
	for name, toss := range map[string]func() bool{
		"all": func() bool { return false }, "some": func() bool { return rand.IntN(2) == 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testserver.Redis(t)
			client, cfg := single(t, s.Addr()), redislock.Config{Quarantine: time.Second, RequestTimeout: leasetest.Patience / 2}
			settled(t, open(t, client, cfg))
			var inflated atomic.Int64
			backendtest.Run(t, backendtest.Harness{
				Open: func(t backendtest.T) backend.Backend {
					return leasetest.Unwatched{Backend: opened(t, client, cfg, func(c program.Conn) program.Conn {
						return &inflating{Conn: c, toss: toss, count: &inflated}
					})}
				},
				Restart:    func(backendtest.T) { s.Restart() },
				NoSlowDisk: "TestConformance has the same server on one",
			})
			if n := inflated.Load(); (n == 0) != (name == "all") {
				t.Errorf("%d locks were inflated", n)
			}
		})
	}
}

// inflating makes the server store locks as hashes at the worst moments: after a lock was taken and
// before the answer arrives, and after a release was called and before it is sent.
type inflating struct {
	program.Conn

	toss  func() bool
	count *atomic.Int64
	last  atomic.Pointer[[]any] // the last command that ran the program
}

func (i *inflating) inflate(ctx context.Context, name string) {
	last := i.last.Load()
	if last == nil || !i.toss() {
		return
	}
	const head = 5 // the command, the program, 1, the key, and the identity of the data
	cmd := append(append([]any{}, (*last)[:head]...), "-", "check", "2", name, "0")
	if _, err := i.Conn.Do(ctx, cmd...); err == nil {
		i.count.Add(1)
	}
}

func (i *inflating) Do(ctx context.Context, cmd ...any) (any, error) {
	if cmd[0] == "ZREM" {
		name, _, _ := strings.Cut(cmd[2].(string), "\n")
		i.inflate(ctx, name)
		return i.Conn.Do(ctx, cmd...)
	}
	answer, err := i.Conn.Do(ctx, cmd...)
	if cmd[0] != "FCALL" && cmd[0] != "EVALSHA" || err != nil {
		return answer, err
	}
	i.last.Store(&cmd)
	const first, terms = 6, 9 // of the operations; and what comes before the leases of an acquire
	for at := first; at+1 < len(cmd); {
		n, err := strconv.Atoi(cmd[at+1].(string))
		if err != nil {
			return answer, nil //nolint:nilerr // it is no number of arguments, so there are no more operations
		}
		if cmd[at] == "acquire" {
			for k := at + 2 + terms; k < at+2+n; k += 2 {
				i.inflate(ctx, cmd[k].(string))
			}
		}
		at += 2 + n
	}
	return answer, nil
}

const noRestart = "it keeps clear of leases for their longest TTL, which some cases make a day"

func groupConformance(t *testing.T, client redis.UniversalClient, cfg redislock.Config) {
	t.Helper()
	cfg.Quarantine, cfg.RequestTimeout = 100*time.Millisecond, 30*time.Second
	settled(t, open(t, client, cfg))
	backendtest.Run(t, backendtest.Harness{
		Holders:   holders(),
		Open:      func(t backendtest.T) backend.Backend { return opened(t, client, cfg, nil) },
		NoRestart: noRestart,
	})
}

// The whole suite on a Cluster of three masters.
func TestConformanceCluster(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3)
	groupConformance(t, connect(t, redis.UniversalOptions{Addrs: addrs(c.Masters()), IsClusterMode: true}), redislock.Config{})
}

// The whole suite behind sentinels, without WAIT and with it.
func TestConformanceSentinel(t *testing.T) {
	t.Parallel()
	for name, replicas := range map[string]int{"alone": 0, "replicas": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := testserver.StartRedisSentinels(t)
			client := connect(t, redis.UniversalOptions{Addrs: strings.Split(g.Addrs(), ","), MasterName: testserver.SentinelMaster})
			groupConformance(t, client, redislock.Config{Replicas: replicas})
		})
	}
}

func addrs(servers []*testserver.RedisServer) []string {
	return strings.Split(testserver.RedisAddrs(servers), ",")
}

// holders is fewer than with rueidis: what a break of thousands takes is the program's, which is the same.
func holders() int { return leasetest.Holders(1000) }
