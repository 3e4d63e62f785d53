package e2e_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// restarts starts a server that can be killed and started again with its data.
type restarts func(t *testing.T) (open func(t *testing.T) backend.Backend, restart func())

// restartable are servers that can be killed and started again with their data.
func restartable() map[string]restarts {
	return map[string]restarts{
		"redis": func(t *testing.T) (func(t *testing.T) backend.Backend, func()) {
			t.Helper()
			s := testserver.Redis(t)
			open := func(t *testing.T) backend.Backend {
				t.Helper()
				b, err := redislock.Open(t.Context(), "redis://"+s.Addr(), redislock.Config{Quarantine: redislock.NoQuarantine})
				return opened(t, b, err)
			}
			return open, func() { s.Kill(); s.Restart() }
		},
		"redlock": func(t *testing.T) (func(t *testing.T) backend.Backend, func()) {
			t.Helper()
			nodes := testserver.RedisNodes(t, redlock.MinNodes)
			open := func(t *testing.T) backend.Backend {
				t.Helper()
				b, err := redlock.Open(t.Context(), "redlock://"+testserver.RedisAddrs(nodes)+"?quarantine=off&timeout=10s", redlock.Config{})
				return opened(t, b, err)
			}
			return open, func() {
				for _, s := range nodes {
					s.Restart()
				}
			}
		},
		"etcd": func(t *testing.T) (func(t *testing.T) backend.Backend, func()) {
			t.Helper()
			s := testserver.StartEtcd(t, testserver.EtcdOptions{})[0]
			open := func(t *testing.T) backend.Backend {
				t.Helper()
				b, err := etcdlock.Open(t.Context(), "etcd://"+s.Addr(), etcdlock.Config{})
				return opened(t, b, err)
			}
			return open, func() { s.Kill(); s.Restart() }
		},
		"consul": func(t *testing.T) (func(t *testing.T) backend.Backend, func()) {
			t.Helper()
			s := testserver.StartConsul(t, 1)[0]
			open := func(t *testing.T) backend.Backend {
				t.Helper()
				b, err := consullock.Open(t.Context(), "consul://"+s.Addr(), consullock.Config{})
				return opened(t, b, err)
			}
			return open, s.Restart
		},
		"kubernetes": func(t *testing.T) (func(t *testing.T) backend.Backend, func()) {
			t.Helper()
			s := testserver.Kubernetes(t)
			config := s.Kubeconfig(s.Addr())
			open := func(t *testing.T) backend.Backend {
				t.Helper()
				b, err := k8slock.Open(t.Context(), "kubernetes://default?kubeconfig="+config, k8slock.Config{})
				return opened(t, b, err)
			}
			return open, s.Restart
		},
		"holdfast": func(t *testing.T) (func(t *testing.T) backend.Backend, func()) {
			t.Helper()
			s := testserver.StartHoldfast(t)
			open := func(t *testing.T) backend.Backend {
				t.Helper()
				b, err := remotelock.Open(t.Context(), s.URL, remotelock.Config{})
				return opened(t, b, err)
			}
			return open, s.Restart
		},
		"postgres": func(t *testing.T) (func(t *testing.T) backend.Backend, func()) {
			t.Helper()
			s := testserver.Postgres(t)
			open := func(t *testing.T) backend.Backend {
				t.Helper()
				b, err := pglock.Open(t.Context(), s.URL(), pglock.Config{})
				return opened(t, b, err)
			}
			return open, s.Restart
		},
		"mysql": func(t *testing.T) (func(t *testing.T) backend.Backend, func()) {
			t.Helper()
			s := testserver.MariaDB(t)
			open := func(t *testing.T) backend.Backend {
				t.Helper()
				b, err := mysqllock.Open(t.Context(), s.URL(), mysqllock.Config{})
				return opened(t, b, err)
			}
			return open, s.Restart
		},
	}
}

func opened(t *testing.T, b backend.Backend, err error) backend.Backend {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// restartTTL is the TTL of leases that outlive a restart of the store.
func restartTTL(store string) time.Duration {
	if store == "redlock" {
		return redlock.DefaultMaxTTL
	}
	return 4 * time.Minute // the start of a server may take the half of it on a busy machine
}

// F9: the store is killed with -9 and started again. Leases and tokens are as they were, and a
// waiter continues to wait, and is granted the lock. Meanwhile many clients count, protected only by a lock, and the count is
// exact.
func TestStoreKilled(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	sideBySide(t, restartable(), func(t *testing.T, name string, start restarts) { //nolint:thelper // it is the test
		var open func(t *testing.T) backend.Backend
		var restart func()
		testserver.InTurn(func() { open, restart = start(t) })
		ttl := restartTTL(name)
		a := client(t, open(t), holdfast.Config{TTL: ttl, Timeout: leasetest.Patience, Owner: "a"})
		b := client(t, open(t), holdfast.Config{TTL: ttl, Timeout: leasetest.Patience, Owner: "b"})
		lock, err := a.Acquire(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		type result struct {
			lock *holdfast.Lock
			err  error
		}
		got := make(chan result, 1)
		go func() {
			l, err := b.Acquire(t.Context(), "n")
			got <- result{l, err}
		}()
		count := newCounting(t, func() *holdfast.Client { return client(t, open(t), holdfast.Config{TTL: ttl}) })
		if name != "redlock" { // its nodes do not know who waits
			awaitWaiters(t, a, "n", 1)
		}
		restart()
		count.end(t)
		info, err := a.Inspect(t.Context(), "n")
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Token != lock.Token() || info.Holders[0].Lease != lock.Lease().ID {
			t.Fatalf("after the restart: %+v, %v", info, err)
		}
		if err := lock.Extend(t.Context(), ttl); err != nil {
			t.Fatalf("renew after the restart: %v", err)
		}
		select {
		case r := <-got:
			t.Fatalf("granted while held: %+v", r)
		default:
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := <-got
		if r.err != nil || r.lock.Token() <= lock.Token() {
			t.Fatalf("the waiter got %+v", r)
		}
		if err := r.lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func awaitWaiters(t *testing.T, c *holdfast.Client, name string, n int) {
	t.Helper()
	leasetest.Eventually(t, fmt.Sprintf("%d wait for %q", n, name), func() bool {
		info, err := c.Inspect(t.Context(), name)
		return err == nil && len(info.Waiters) == n
	})
}

// counting are clients that count, protected only by the lock.
type counting struct {
	restarted chan struct{}
	exact     atomic.Int64 // read, then written: only the lock makes it exact
	rounds    atomic.Int64
	work      sync.WaitGroup
}

// newCounting starts counting, and returns when it has begun.
func newCounting(t *testing.T, connect func() *holdfast.Client) *counting {
	t.Helper()
	const clients, goroutines, least = 2, 4, 10
	c := &counting{restarted: make(chan struct{})}
	for range clients {
		locks := connect()
		for range goroutines {
			c.work.Go(func() {
				for n := 0; n < least || !closed(c.restarted); n++ {
					lock, err := locks.Acquire(t.Context(), "counter")
					if err != nil {
						t.Error(err)
						return
					}
					before := c.exact.Load()
					runtime.Gosched()
					c.exact.Store(before + 1)
					c.rounds.Add(1)
					if err := lock.Release(t.Context()); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
						t.Error(err)
					}
				}
			})
		}
	}
	leasetest.Eventually(t, "they count", func() bool { return c.rounds.Load() > 0 })
	return c
}

// end lets each finish its rounds, and compares the counts.
func (c *counting) end(t *testing.T) {
	t.Helper()
	close(c.restarted)
	c.work.Wait()
	if exact, rounds := c.exact.Load(), c.rounds.Load(); exact != rounds {
		t.Errorf("count %d, want %d", exact, rounds)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
