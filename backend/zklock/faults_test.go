package zklock_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// closing opens a backend that the test closes.
// through opens a backend that reaches the server only by the proxy.
func through(t *testing.T, proxy *chaos.Proxy) *zklock.Backend {
	t.Helper()
	return opened(t, config(t, proxy.Addr()))
}

// B: the reply to the create is lost: there is no ghost, and a retry with the same lease is the
// same grant.
func TestLostCreateReply(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	proxy := chaos.Start(t, server.Addr())
	b, other := through(t, proxy), closing(t, server)
	id := leasetest.Session(t, b, leasetest.Long, nil)
	leasetest.Take(t, b, leasetest.Ask("warm", id)) // so that the nodes exist
	req := leasetest.Ask("n", id)
	lost := proxy.LoseReply(func(piece []byte) bool { return bytes.Contains(piece, []byte(req.Lease)) })
	had := make(chan error, 1)
	var grant backend.Grant
	go func() {
		var err error
		for { // as the client does: under the same lease ID
			if grant, err = b.Acquire(leasetest.Within(t), req); !errors.Is(err, backend.ErrUnavailable) {
				break
			}
		}
		had <- err
	}()
	<-lost
	proxy.Reset()
	if err := <-had; err != nil {
		t.Fatal(err)
	}
	info, err := other.Inspect(leasetest.Within(t), "n")
	if err != nil || len(info.Holders) != 1 || len(info.Waiters) != 0 || info.Holders[0].Token != grant.Token || info.Holders[0].Lease != req.Lease {
		t.Errorf("after the lost reply: %+v, %v; want one holder with token %d", info, err, grant.Token)
	}
	leasetest.Give(t, b, req)
	if info, err := other.Inspect(leasetest.Within(t), "n"); err != nil || len(info.Holders)+len(info.Waiters) != 0 {
		t.Errorf("something is left: %+v, %v", info, err)
	}
}

// The holder is cut off: its session ends, and the next waiter gets the lock, no earlier than the
// TTL after the last renewal and no later than the stated bound. The holder is told by then.
func TestHolderIsCutOff(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	server := zookeeper()
	proxy := chaos.Start(t, server.Addr())
	b, other := through(t, proxy), closing(t, server)
	const ttl = 12 * time.Second // time to join the queue, also on a busy machine
	lost := make(chan time.Time, 1)
	id := leasetest.Session(t, b, ttl, func(l backend.Loss) {
		if l.Lease == "" {
			lost <- time.Now()
		}
	})
	first := leasetest.Take(t, b, leasetest.Ask("n", id))
	next := leasetest.Ask("n", leasetest.Session(t, other, leasetest.Long, nil))
	had := make(chan backend.Grant, 1)
	go func() {
		g, err := other.Acquire(leasetest.Within(t), next)
		if err != nil {
			t.Errorf("the next: %v", err)
		}
		had <- g
	}()
	leasetest.InQueue(t, other, "n", 1)
	before := time.Now()
	if res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id}); err != nil || res.SessionLost {
		t.Fatalf("%+v, %v", res, err)
	}
	renewed := time.Now()
	proxy.BlackHole()
	g := <-had
	now := time.Now()
	if g.Token <= first {
		t.Errorf("token %d after %d", g.Token, first)
	}
	if early := before.Add(ttl).Sub(now); early > 0 {
		t.Errorf("granted %s before the TTL had elapsed", early)
	}
	if took := now.Sub(renewed); took > ttl+other.Capabilities().ExpiryLag+20*time.Second {
		t.Errorf("granted after %s", took)
	}
	select {
	case at := <-lost: // in the same process: either may be scheduled a moment later
		if late := at.Sub(now); late > 5*time.Second {
			t.Errorf("the holder was told %s after the next had the lock", late)
		}
	case <-time.After(leasetest.Patience):
		t.Error("the next has the lock, and the holder does not know")
	}
	if _, err := b.Acquire(leasetest.Within(t), leasetest.Ask("n", id)); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("acquire under the dead session: %v", err)
	}
}

// The leader of three is killed, and one that a client is connected to hangs: holders keep their
// locks, waiters get the lock, and tokens grow.
func TestEnsemble(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	servers := testserver.StartZooKeeper(t, 3)
	a, b := closing(t, servers...), closing(t, servers...)
	lost := make(chan backend.Loss, 10)
	tell := func(l backend.Loss) { lost <- l }
	// The others give up a leader that hangs after ten ticks, which are five seconds, and need some
	// for another one: on a busy machine, whose disk may stand still, many times as much.
	const ttl = 40 * time.Second
	ids := map[*zklock.Backend]backend.SessionID{a: leasetest.Session(t, a, ttl, tell), b: leasetest.Session(t, b, ttl, tell)}
	stop := make(chan struct{})
	var keepers sync.WaitGroup
	for x, id := range ids { // as the client does
		keepers.Go(func() {
			for tick := time.NewTicker(time.Second); ; {
				select {
				case <-tick.C:
					ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
					_, _ = x.Renew(ctx, backend.RenewRequest{Session: id})
					cancel()
				case <-stop:
					tick.Stop()
					return
				}
			}
		})
	}
	defer func() { close(stop); keepers.Wait() }()
	held := leasetest.Ask("n", ids[a])
	last := leasetest.Take(t, a, held)
	for round, hurt := range []func(*testserver.ZooKeeperServer){
		func(s *testserver.ZooKeeperServer) { s.Kill() },
		func(s *testserver.ZooKeeperServer) { s.Process().Stop() },
	} {
		var leader *testserver.ZooKeeperServer
		leasetest.Eventually(t, "a leader", func() bool {
			for _, s := range servers {
				if s.Leads() {
					leader = s
				}
			}
			return leader != nil
		})
		from, to := a, b
		if round%2 == 1 {
			from, to = b, a
		}
		next := leasetest.Ask("n", ids[to])
		had := make(chan fence.Token, 1)
		go func() {
			for {
				g, err := to.Acquire(leasetest.Within(t), next)
				if errors.Is(err, backend.ErrUnavailable) {
					continue
				}
				if err != nil {
					t.Errorf("round %d: the next: %v", round, err)
				}
				had <- g.Token
				return
			}
		}()
		leasetest.InQueue(t, from, "n", 1)
		hurt(leader)
		leasetest.Eventually(t, "the release", func() bool {
			err := from.Release(leasetest.Within(t), backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: held.Session})
			if err != nil && !errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, backend.ErrLost) {
				t.Fatalf("round %d: release: %v", round, err)
			}
			return err == nil || errors.Is(err, backend.ErrLost) // it was sent twice
		})
		token := <-had
		if token <= last {
			t.Errorf("round %d: token %d after %d", round, token, last)
		}
		last, held = token, next
		if round == 0 {
			leader.Start()
		} else {
			leader.Process().Cont()
		}
	}
	select {
	case l := <-lost:
		t.Errorf("lost: %+v", l)
	default:
	}
}

// 1,000 wait, and for each release one watch fires: no herd. Nothing is left of them.
func TestNoHerd(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	server := testserver.StartZooKeeper(t, 1)[0]
	b := closing(t, server)
	id := leasetest.Session(t, b, 10*time.Minute, nil)
	const n = 1000
	held := leasetest.Ask("n", id)
	last := leasetest.Take(t, b, held)
	type granted struct {
		req   backend.AcquireRequest
		token fence.Token
	}
	had := make(chan granted, n)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*leasetest.Patience) // for a thousand turns
	t.Cleanup(cancel)
	for range n {
		req := leasetest.Ask("n", id)
		go func() {
			g, err := b.Acquire(ctx, req)
			if err != nil {
				t.Errorf("acquire: %v", err)
			}
			had <- granted{req, g.Token}
		}()
	}
	leasetest.InQueue(t, b, "n", n)
	// Each waiter watches its own node, which the one behind it watches too; the first watches the
	// holder's, and the session its notices.
	const others = 2
	leasetest.Eventually(t, "all watch", func() bool { return server.Count("zk_watch_count") == n+others })
	const requests = "zk_packets_received"
	asked := server.Count(requests)
	leasetest.Give(t, b, held)
	next := <-had
	if left := server.Count("zk_watch_count"); left < n*9/10 { // a watch that was made again may be missing; a herd is all
		t.Errorf("%d watches are left of %d: one has to fire for a release", left, n+others)
	}
	for i := 1; ; i++ {
		if next.token <= last {
			t.Fatalf("grant %d: token %d after %d", i, next.token, last)
		}
		last = next.token
		// A herd sends a request for each waiter. By now the answers to those of the first releases are there,
		// because they travel on the connection of this client, before what it sends now.
		const some = 20
		if i == some {
			if sent := server.Count(requests) - asked; sent > n/2 {
				t.Fatalf("%d requests for %d releases", sent, some)
			}
		}
		leasetest.Give(t, b, next.req)
		if i == n {
			break
		}
		next = <-had
	}
	leasetest.Eventually(t, "the container is collected", func() bool {
		page, err := b.List(leasetest.Within(t), backend.ListRequest{})
		return err == nil && len(page.Locks) == 0 && server.Count("zk_ephemerals_count") == 2
	})
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
	type turn struct {
		req backend.AcquireRequest
		err error
	}
	turns := make(chan turn, waiters)
	for n := range waiters {
		req := leasetest.Ask("n", ids[n%len(ids)])
		go func() {
			_, err := b.Acquire(leasetest.Within(t), req)
			for errors.Is(err, backend.ErrUnavailable) { // it keeps its place
				_, err = b.Acquire(leasetest.Within(t), req)
			}
			turns <- turn{req, err}
		}()
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
	for range waiters {
		next := <-turns
		if next.err != nil {
			t.Fatal(next.err)
		}
		leasetest.Give(t, b, next.req)
	}
}
