package e2e_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/server"
)

// throughProxy starts a server behind a network; see networks.
type throughProxy func(t *testing.T) (addr string, open func(t *testing.T, proxy string) backend.Backend)

// networks returns the backends that have a network in front of them. Each function returns the
// address of the real server that all tests share, and a function for a backend value that reaches it through proxy.
func networks() map[string]throughProxy {
	return map[string]throughProxy{
		"redis":      overRedis,
		"etcd":       overEtcd,
		"holdfast":   overHTTP,
		"zookeeper":  overZooKeeper,
		"postgres":   overPostgres,
		"mysql":      overMySQL,
		"consul":     overConsul,
		"kubernetes": overKubernetes,
	}
}

func overKubernetes(t *testing.T) (string, func(t *testing.T, proxy string) backend.Backend) {
	t.Helper()
	s := sharedKubernetes()
	return s.Addr(), func(t *testing.T, proxy string) backend.Backend {
		t.Helper()
		b, err := k8slock.Open(t.Context(), "kubernetes://default?kubeconfig="+s.Kubeconfig(proxy), k8slock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func overConsul(t *testing.T) (string, func(t *testing.T, proxy string) backend.Backend) {
	t.Helper()
	s := sharedConsul()
	return s.Addr(), func(t *testing.T, proxy string) backend.Backend {
		t.Helper()
		b, err := consullock.Open(t.Context(), "consul://"+proxy+"?min_ttl="+testserver.ConsulMinTTL.String(), consullock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func overZooKeeper(t *testing.T) (string, func(t *testing.T, proxy string) backend.Backend) {
	t.Helper()
	s := sharedZooKeeper()
	return s.Addr(), func(t *testing.T, proxy string) backend.Backend {
		t.Helper()
		b, err := zklock.New(zklock.Config{Servers: []string{proxy}, Tick: testserver.ZooKeeperTick, MaxSession: testserver.ZooKeeperMaxSession})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func overPostgres(t *testing.T) (string, func(t *testing.T, proxy string) backend.Backend) {
	t.Helper()
	s := sharedPostgres()
	return s.Addr(), func(t *testing.T, proxy string) backend.Backend {
		t.Helper()
		b, err := pglock.Open(t.Context(), s.URLOf("postgres", proxy), pglock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func overMySQL(t *testing.T) (string, func(t *testing.T, proxy string) backend.Backend) {
	t.Helper()
	s := sharedMariaDB()
	return s.Addr(), func(t *testing.T, proxy string) backend.Backend {
		t.Helper()
		b, err := mysqllock.Open(t.Context(), s.URLOf("root", proxy), mysqllock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func overRedis(t *testing.T) (string, func(t *testing.T, proxy string) backend.Backend) {
	t.Helper()
	s := sharedRedis()
	return s.Addr(), func(t *testing.T, proxy string) backend.Backend {
		t.Helper()
		b, err := redislock.Open(t.Context(), "redis://"+proxy+"?quarantine=off", redislock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func overEtcd(t *testing.T) (string, func(t *testing.T, proxy string) backend.Backend) {
	t.Helper()
	s := sharedEtcd()
	return s.Addr(), func(t *testing.T, proxy string) backend.Backend {
		t.Helper()
		b, err := etcdlock.Open(t.Context(), "etcd://"+proxy, etcdlock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func overHTTP(t *testing.T) (string, func(t *testing.T, proxy string) backend.Backend) {
	t.Helper()
	return overHTTPOn(t, memlock.New())
}

// overHTTPOn serves the store, and closes it in the end.
func overHTTPOn(t *testing.T, store backend.Backend) (string, func(t *testing.T, proxy string) backend.Backend) {
	t.Helper()
	srv, err := server.New(store, server.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		_ = store.Close()
	})
	return ln.Addr().String(), func(t *testing.T, proxy string) backend.Backend {
		t.Helper()
		b, err := remotelock.Open(t.Context(), "holdfast://"+proxy, remotelock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

// B8, C9: the network drops everything. The holder's context ends at its deadline, within 50
// ms, and before the server grants the lock to another client. The lateness of this process's
// timers at that time is the machine's.
func TestBlackHole(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	cutOff(t, (*chaos.Proxy).BlackHole)
}

// F4: the same where only the replies are dropped: the holder's requests are executed, its
// renewals too, and it receives no answer.
func TestRepliesCut(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	cutOff(t, func(p *chaos.Proxy) { p.Cut(chaos.Replies) })
}

func cutOff(t *testing.T, cutNetwork func(*chaos.Proxy)) {
	t.Helper()
	const ttl = 15 * time.Second
	sideBySide(t, networks(), func(t *testing.T, _ string, start throughProxy) { //nolint:thelper // it is the test
		addr, open := start(t)
		proxy := chaos.Start(t, addr)
		cut := open(t, proxy.Addr())
		direct := open(t, addr)
		t.Cleanup(func() { _, _ = cut.Close(), direct.Close() })
		holder := client(t, cut, holdfast.Config{TTL: ttl, Timeout: ttl / 4, Owner: "holder"})
		next := client(t, direct, holdfast.Config{TTL: ttl, Owner: "next"})
		placeIsGone(t, proxy, holder, next)

		lock, err := holder.Acquire(t.Context(), t.Name())
		if err != nil {
			t.Fatal(err)
		}
		granted := make(chan time.Time, 1)
		var others sync.WaitGroup
		defer others.Wait()
		others.Go(func() {
			got, err := next.Acquire(t.Context(), t.Name())
			if err == nil {
				granted <- time.Now()
				err = got.Release(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
		// At least one renewal has moved the deadline before the cut.
		renewed(t, lock)
		cutNetwork(proxy)
		deadline := lock.Deadline()
		lag := lateness(t)
		<-lock.Context().Done()
		ended := time.Now()
		inTime(t, lock, ended, lag)
		if ended.Before(deadline.Add(-time.Millisecond)) {
			t.Errorf("the context ended %s before the deadline", deadline.Sub(ended))
		}
		var lost *holdfast.LostError
		if !errors.As(context.Cause(lock.Context()), &lost) || lost.Cause != holdfast.CauseDeadline {
			t.Errorf("cause: %v", context.Cause(lock.Context()))
		}
		select {
		case at := <-granted:
			if knew := knewBy(lock, ended); at.Before(knew) {
				t.Errorf("granted to the next %s before the first one knew", knew.Sub(at))
			}
		case <-time.After(2 * time.Minute):
			t.Error("never granted to the next")
		}
	})
}

// placeIsGone checks C7 for the client: when a call returns because its context has ended, its place in the queue
// is gone. What the client sends is delayed, so that the place cannot be gone by chance. On a machine that is too
// slow for acquire.Withdrawal the call does not wait for that, so there are several rounds.
func placeIsGone(t *testing.T, proxy *chaos.Proxy, far, near *holdfast.Client) {
	t.Helper()
	proxy.Delay(chaos.Requests, 40*time.Millisecond, 0)
	defer proxy.Delay(chaos.Requests, 0, 0)
	var err error
	for range 5 {
		held, failed := near.Acquire(t.Context(), t.Name()+"/place")
		if failed != nil {
			t.Fatal(failed)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := far.Acquire(ctx, t.Name()+"/place")
			done <- err
		}()
		leasetest.Eventually(t, "one waits", func() bool {
			info, err := near.Inspect(t.Context(), t.Name()+"/place")
			return err == nil && len(info.Waiters) == 1
		})
		cancel()
		if failed := <-done; !errors.Is(failed, context.Canceled) {
			t.Fatalf("the end of a wait: %v", failed)
		}
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if held, err = near.TryAcquire(t.Context(), t.Name()+"/place"); err == nil {
			if err := held.Release(t.Context()); err != nil {
				t.Error(err)
			}
			return
		}
	}
	t.Errorf("the place of a call that has returned: %v", err)
}

// renewed waits until the lock was renewed.
func renewed(t *testing.T, lock *holdfast.Lock) {
	t.Helper()
	select {
	case <-lock.Renewed():
	case <-lock.Context().Done():
		t.Fatalf("lost before it was renewed: %v", context.Cause(lock.Context()))
	}
}

// inTime checks that the context of a lost lock ended at its deadline, as far as timers were in time.
func inTime(t *testing.T, lock *holdfast.Lock, ended time.Time, lag func() time.Duration) {
	t.Helper()
	if late, machine := ended.Sub(lock.Deadline()), lag(); late > 500*time.Millisecond+machine {
		t.Errorf("the context ended %s after the deadline, and timers were late by %s at most", late, machine)
	}
}

// lateness measures how late timers are, and returns the most that it saw.
func lateness(t *testing.T) func() time.Duration {
	t.Helper()
	stop, most := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		const every = 5 * time.Millisecond
		worst := time.Duration(0)
		for {
			asked := time.Now()
			select {
			case <-time.After(every):
				worst = max(worst, time.Since(asked)-every)
			case <-stop:
				most <- max(worst, time.Since(asked)-every) // the timer may be late at this moment
				return
			}
		}
	}()
	return sync.OnceValue(func() time.Duration { close(stop); return <-most })
}

// knewBy returns when the holder knew that its lease was over. ended was read after that by a goroutine, which may have
// come to it late.
func knewBy(lock *holdfast.Lock, ended time.Time) time.Time {
	if deadline := lock.Deadline(); deadline.Before(ended) {
		return deadline
	}
	return ended
}

func client(t *testing.T, b backend.Backend, cfg holdfast.Config) *holdfast.Client {
	t.Helper()
	c, err := holdfast.New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Second)
		defer cancel()
		_ = c.Close(ctx) // a cut client cannot release anything
	})
	return c
}
