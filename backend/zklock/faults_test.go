package zklock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// through opens a backend that reaches the server only by the proxy.
func through(t *testing.T, proxy *chaos.Proxy) *zklock.Backend {
	t.Helper()
	return opened(t, config(t, proxy.Addr()))
}

func TestLostReply(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	proxy := chaos.Start(t, server.Addr())
	leasetest.LostReply(t, through(t, proxy), closing(t, server), proxy, "")
}

// The leader of three is killed, and then one hangs: the others give up a leader that hangs after ten ticks.
func TestEnsemble(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	servers := testserver.StartZooKeeper(t, 3)
	a, b := closing(t, servers...), closing(t, servers...)
	leader := func() *testserver.ZooKeeperServer {
		var found *testserver.ZooKeeperServer
		leasetest.Eventually(t, "a leader", func() bool {
			i := slices.IndexFunc(servers, (*testserver.ZooKeeperServer).Leads)
			if i >= 0 {
				found = servers[i]
			}
			return i >= 0
		})
		return found
	}
	first := leader()
	leasetest.LeaderDown(t, a, b, first.Kill)
	first.Start()
	second := leader()
	leasetest.LeaderDown(t, b, a, func() { second.Process().Stop() })
	second.Process().Cont()
}

// Many wait in each of two processes, and for each release one watch fires.
func TestNoHerd(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const each, few = 100, 10
	server := testserver.StartZooKeeper(t, 1)[0]
	values := []*zklock.Backend{closing(t, server), closing(t, server)}
	leasetest.NoHerd(t, values, each, func() {}, func() int { return server.Count("zk_packets_received") }, few*each*len(values))
}

// With a user, no other client may do anything; a TTL that the ensemble does not give is refused by
// name.
func TestUserAndBounds(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	cfg := config(t, server.Addr())
	cfg.Path, cfg.User, cfg.Password = "/team/locks", "u", "secret"
	b := opened(t, cfg)
	leasetest.Take(t, b, leasetest.Ask("n", leasetest.Session(t, b, leasetest.Long, nil)))
	cfg.User, cfg.Password = "v", "other"
	err := opened(t, cfg).OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
	if !errors.Is(err, backend.ErrUnavailable) || strings.Contains(err.Error(), "other") {
		t.Errorf("a stranger's session: %v", err)
	}
	cfg.User, cfg.Path, cfg.MaxSession = "", "/wide", time.Hour // more than the server gives
	var bad *backend.InvalidError
	err = opened(t, cfg).OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: 30 * time.Minute})
	if !errors.As(err, &bad) || bad.Field != "ttl" {
		t.Errorf("a session that is too long: %v", err)
	}
}

// The connection breaks again and again while requests are under way and waiters watch: no answer
// is read before the ensemble knows again what is watched, and the queue keeps moving.
func TestWatchesComeBeforeAnswers(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	server := zookeeper()
	proxy := chaos.Start(t, server.Addr())
	b := through(t, proxy)
	id := leasetest.Session(t, b, 5*time.Minute, nil)
	// Those of one session notify each other: two take turns.
	ids := []backend.SessionID{leasetest.Session(t, b, 5*time.Minute, nil), id}
	held := leasetest.Ask("n", id)
	leasetest.Take(t, b, held)
	const waiters, breaks = 30, 20
	var queue []backend.AcquireRequest
	var answers []<-chan leasetest.Answer
	for n := range waiters {
		queue = append(queue, leasetest.Ask("n", ids[n%len(ids)]))
		answers = append(answers, leasetest.StartInsisting(t, b, queue[n])) // it keeps its place
		leasetest.InQueue(t, b, "n", n+1)
	}
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	var answered atomic.Int64
	for range 8 {
		busy.Go(func() {
			for ctx.Err() == nil {
				req := backend.AcquireRequest{Name: "other", Lease: backend.NewLeaseID(), Session: id}
				if _, err := b.Acquire(ctx, req); err == nil {
					_ = b.Release(ctx, backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: id, Abandon: true})
				}
				answered.Add(1)
			}
		})
	}
	for range breaks {
		before := answered.Load()
		proxy.Reset()
		leasetest.Eventually(t, "requests are answered again", func() bool { return answered.Load() > before+40 })
	}
	stop()
	busy.Wait()
	leasetest.Give(t, b, held)
	for i, got := range answers {
		if a := <-got; a.Err != nil {
			t.Fatal(a.Err)
		}
		leasetest.Give(t, b, queue[i])
	}
}
