package goredis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/backend/redislock/goredis"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The client of the program retries three times. Our requests are executed once: a second break
// would end the lease of the next holder, and a second release would be answered with ErrLost.
func TestNothingIsSentTwice(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	proxy := chaos.Start(t, s.Addr())
	other := open(t, single(t, s.Addr()), cfg)
	b := open(t, single(t, proxy.Addr()), cfg)
	id := leasetest.Session(t, other, time.Hour, nil)
	first, second := leasetest.Ask("n", id), leasetest.Ask("n", id)
	token := leasetest.Take(t, other, first)
	granted := leasetest.Start(t, other, second)
	leasetest.InQueue(t, other, "n", 1)

	proxy.CloseAfterRequest(func(piece []byte) bool { return bytes.Contains(piece, []byte("break")) })
	_, err := b.Break(leasetest.Within(t), backend.BreakRequest{Name: "n"})
	if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
		t.Errorf("a break without an answer: %v; want that it may have been done", err)
	}
	if g := <-granted; g.Err != nil || g.Grant.Token <= token {
		t.Fatalf("the next holder: %+v", g)
	}
	for range 3 { // as often as the client would retry: its pauses are shorter than an answer
		if _, err := b.Inspect(leasetest.Within(t), "n"); err != nil {
			t.Fatal(err)
		}
	}
	leasetest.Give(t, other, second)

	mine := leasetest.Session(t, b, time.Hour, nil)
	req := leasetest.Ask("thin", mine)
	leasetest.Take(t, b, req)
	s.ResetStats()
	proxy.CloseAfterRequest(func(piece []byte) bool { return bytes.Contains(piece, []byte("ZREM")) })
	err = b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: mine})
	if !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("a release without an answer: %v", err)
	}
	leasetest.Eventually(t, "the release was executed", func() bool { return s.CommandStats()["zrem"] > 0 })
	if n := s.CommandStats()["zrem"]; n != 1 {
		t.Errorf("the release was executed %d times", n)
	}
}

// The answer to an acquire arrives after its caller has given up. No other caller gets it, and an
// abandoned lease is not granted.
func TestAnswerAfterTheContext(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	proxy := chaos.Start(t, s.Addr())
	b := open(t, single(t, proxy.Addr()), cfg)
	id := leasetest.Session(t, b, time.Hour, nil)
	leasetest.Take(t, b, leasetest.Ask("warm", id))
	for i := range 50 {
		req := leasetest.Ask(fmt.Sprint("n", i), id)
		proxy.Hold(chaos.Replies)
		ctx, cancel := context.WithCancel(t.Context())
		given := make(chan error, 1)
		go func() {
			_, err := b.Acquire(ctx, req)
			given <- err
		}()
		leasetest.Eventually(t, "it was sent", func() bool {
			return s.Do("ZLEXCOUNT", "{hf0}:t", "["+req.Name+"\n", "("+req.Name+"\v") == int64(1)
		})
		cancel()
		if err := <-given; !errors.Is(err, backend.ErrUnavailable) {
			t.Fatalf("%v", err)
		}
		proxy.Release(chaos.Replies)
		// Each answer is that of its own request.
		info, err := leasetest.Insist(t, func(ctx context.Context) (backend.LockInfo, error) { return b.Inspect(ctx, req.Name) })
		if err != nil || info.Name != req.Name || len(info.Holders) != 1 || info.Holders[0].Lease != req.Lease {
			t.Fatalf("%+v, %v", info, err)
		}
		leasetest.Give(t, b, req) // it is in doubt, so it must not come to life again
		if _, err := b.Acquire(leasetest.Within(t), req); !errors.Is(err, backend.ErrLost) {
			t.Fatalf("a lease that was given up: %v", err)
		}
	}
}

// All connections of the program's client are in use by commands that block. Renewals, waiters and
// releases have connections of their own.
func TestStarvedPool(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), PoolSize: 1, MaxActiveConns: 1, PoolTimeout: time.Hour})
	t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	blocked := make(chan error, 1)
	go func() { blocked <- client.BLPop(ctx, time.Hour, "never").Err() }()
	leasetest.Eventually(t, "it blocks", func() bool { return strings.Contains(s.Info("clients"), "blocked_clients:1") })
	b := open(t, client, cfg)
	id := leasetest.Session(t, b, time.Hour, nil)
	req := leasetest.Ask("n", id)
	leasetest.Take(t, b, req)
	if r, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id}); err != nil || r.SessionLost {
		t.Errorf("%+v, %v", r, err)
	}
	next := leasetest.Start(t, b, leasetest.Ask("n", id))
	leasetest.InQueue(t, b, "n", 1)
	leasetest.Give(t, b, req)
	if g := <-next; g.Err != nil {
		t.Error(g.Err)
	}
	select {
	case err := <-blocked:
		t.Errorf("the client was not busy: %v", err)
	default:
	}
	s.Do("RPUSH", "never", "now")
	t.Log(<-blocked) // an answer, or that it was cut off
	cancel()
}

// short opens a backend whose request time-out is short, also for a busy machine, and a session: it retries.
func short(t *testing.T, client redis.UniversalClient) (*redislock.Backend, backend.SessionID) {
	t.Helper()
	cfg := redislock.Config{Quarantine: time.Millisecond, RequestTimeout: 500 * time.Millisecond}
	b, err := leasetest.Insist(t, func(context.Context) (*redislock.Backend, error) { return goredis.New(client, cfg) })
	leasetest.Opened(t, b, err)
	id := backend.NewSessionID()
	err = leasetest.InsistOn(t, func(ctx context.Context) error {
		return b.OpenSession(ctx, backend.SessionRequest{ID: id, TTL: time.Hour, Lost: func(backend.Loss) {}})
	})
	if err != nil {
		t.Fatalf("open session: %v", err)
	}
	return b, id
}

// A subscription whose connection broke is made again, and what was published meanwhile is not
// missed: a waiter is granted the lock.
func TestSubscriptionBreaks(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	proxy := chaos.Start(t, s.Addr())
	holder := open(t, single(t, s.Addr()), cfg)
	var dials atomic.Int64
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}})
	t.Cleanup(func() { _ = client.Close() })
	b, mine := short(t, client)
	id := leasetest.Session(t, holder, time.Hour, nil)
	for name, fault := range map[string]func() func(){
		"killed": func() func() { s.Do("CLIENT", "KILL", "TYPE", "pubsub"); return func() {} },
		// Nothing arrives, and only the missing answers to pings show it.
		"silent": func() func() {
			before := dials.Load()
			proxy.Hold(chaos.Replies)
			leasetest.Eventually(t, "the subscription is given up", func() bool { return dials.Load() > before })
			return func() { proxy.Release(chaos.Replies) }
		},
	} {
		held, waits := leasetest.Ask(name, id), leasetest.Ask(name, mine)
		leasetest.Take(t, holder, held)
		got := make(chan error, 1)
		go func() { // again and again, as a client does
			got <- leasetest.InsistOn(t, func(ctx context.Context) error { _, err := b.Acquire(ctx, waits); return err })
		}()
		leasetest.InQueue(t, holder, name, 1)
		mend := fault()
		leasetest.Give(t, holder, held)
		mend()
		if err := <-got; err != nil {
			t.Errorf("%s: the waiter got %v", name, err)
		}
	}
}

// The server hangs, and the time-outs of the program's client are off: every call ends in time, and
// so does Close.
func TestServerHangs(t *testing.T) {
	t.Parallel()
	s, _ := quick(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: -2, WriteTimeout: -2})
	t.Cleanup(func() { _ = client.Close() })
	b, id := short(t, client)
	s.Process().Stop()
	defer s.Process().Cont()
	for range 20 { // more than there are connections
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if _, err := b.Acquire(ctx, leasetest.Ask("n", id)); !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		cancel()
	}
	if _, err := b.Renew(context.WithoutCancel(t.Context()), backend.RenewRequest{Session: id}); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(leasetest.Patience):
		t.Fatal("Close waits for the server")
	}
}

// A slot is migrating: its keys are on two servers. No client is granted what is held, however many
// keys have moved, because ASK is not followed; MOVED is.
func TestSlotMoves(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3)
	client := connect(t, redis.UniversalOptions{Addrs: addrs(c.Masters())[:1], IsClusterMode: true})
	b := open(t, client, redislock.Config{Quarantine: redislock.NoQuarantine, RequestTimeout: 5 * time.Second})
	id := leasetest.Session(t, b, time.Hour, nil)
	held := leasetest.Ask("n", id)
	token := leasetest.Take(t, b, held)
	slot := c.Slot("{hf0}:m")
	for round := range 3 { // each of the servers has it once
		from := c.Owner("{hf0}:m")
		to := c.Masters()[(slices.Index(c.Masters(), from)+1)%3]
		keys := c.Keys(from, slot)
		slices.Sort(keys)
		if round%2 == 1 {
			slices.Reverse(keys)
		}
		c.BeginMove(slot, from, to)
		for k := range len(keys) + 1 {
			_, err := b.Acquire(leasetest.Within(t), backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Session: id})
			if !errors.Is(err, backend.ErrHeld) && !errors.Is(err, backend.ErrUnavailable) {
				t.Fatalf("%d of %d keys moved: acquire gave %v", k, len(keys), err)
			}
			if k < len(keys) {
				c.MoveKeys(from, to, keys[k])
			}
		}
		c.EndMove(slot, from, to)
		info, err := leasetest.Insist(t, func(ctx context.Context) (backend.LockInfo, error) { return b.Inspect(ctx, "n") })
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Token != token {
			t.Fatalf("after the move: %+v, %v", info, err)
		}
	}
	leasetest.Give(t, b, held)
}

// The master behind sentinels dies: the backend finds the next one.
func TestFailOver(t *testing.T) {
	t.Parallel()
	g := testserver.StartRedisSentinels(t)
	client := connect(t, redis.UniversalOptions{Addrs: strings.Split(g.Addrs(), ","), MasterName: testserver.SentinelMaster})
	b := open(t, client, redislock.Config{Quarantine: redislock.NoQuarantine, RequestTimeout: 6 * time.Second})
	id := leasetest.Session(t, b, time.Hour, nil)
	token := leasetest.Take(t, b, leasetest.Ask("n", id))
	g.Master.Kill()
	g.AwaitFailOver()
	next, err := leasetest.Insist(t, func(ctx context.Context) (backend.Grant, error) {
		return b.Acquire(ctx, backend.AcquireRequest{Name: "m", Lease: "after-the-fail-over", Timed: true, TTL: time.Minute})
	})
	if err != nil || next.Token <= token {
		t.Errorf("%+v, %v after token %d", next, err, token)
	}
	if token := fmt.Sprint(g.Replica.Do("GET", "{hf0}:f")); token != next.Token.String() {
		t.Errorf("the greatest token on the new master is %s, not %d", token, next.Token)
	}
}

// Credentials come from the callback of the client, for each connection. A wrong password is an
// error without the password.
func TestCredentials(t *testing.T) {
	t.Parallel()
	const password = "canary-of-the-callback"
	s := testserver.Redis(t)
	s.Do("ACL", "SETUSER", "locks", "on", ">"+password, "~{hf0}:*", "&{hf0}:*", "+@all")
	var asked atomic.Int64
	client := redis.NewClient(&redis.Options{
		Addr: s.Addr(),
		CredentialsProviderContext: func(context.Context) (string, string, error) {
			asked.Add(1)
			return "locks", password, nil
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	b := open(t, client, redislock.Config{Quarantine: redislock.NoQuarantine})
	id := leasetest.Session(t, b, time.Hour, func(backend.Loss) {})
	leasetest.Take(t, b, leasetest.Ask("n", id))
	if asked.Load() < 2 { // a request and the subscription
		t.Errorf("the callback was asked %d times", asked.Load())
	}
	wrong := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: "locks", Password: password + "x"})
	t.Cleanup(func() { _ = wrong.Close() })
	_, err := goredis.New(wrong, redislock.Config{})
	if !errors.Is(err, backend.ErrUnavailable) || strings.Contains(err.Error(), password) || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("with a wrong password: %v", err)
	}
}

// As in redislock: where no server listens, nothing was sent.
func TestServerIsGone(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, single(t, s.Addr()), cfg)
	s.Process().Kill()
	leasetest.Unsent(t, b)
}

// Clients of both libraries share the locks.
func TestBesideRueidis(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, single(t, s.Addr()), cfg)
	other, err := redislock.Open(t.Context(), "redis://"+s.Addr(), cfg)
	leasetest.Opened(t, other, err)
	id, otherID := leasetest.Session(t, b, time.Hour, nil), leasetest.Session(t, other, time.Hour, nil)
	for range 3 {
		mine, theirs := leasetest.Ask("n", id), leasetest.Ask("n", otherID)
		token := leasetest.Take(t, b, mine)
		got := leasetest.Start(t, other, theirs)
		leasetest.InQueue(t, b, "n", 1)
		leasetest.Give(t, b, mine)
		if g := <-got; g.Err != nil || g.Grant.Token <= token {
			t.Fatalf("%+v after %d", g, token)
		}
		mine = leasetest.Ask("n", id)
		got = leasetest.Start(t, b, mine)
		leasetest.InQueue(t, other, "n", 1)
		leasetest.Give(t, other, theirs)
		if g := <-got; g.Err != nil {
			t.Fatal(g.Err)
		}
		leasetest.Give(t, b, mine)
	}
}

// Clients that cannot say which server has the data are refused, and so is none at all.
func TestRefusedClients(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	fixed := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return nil, nil }})
	t.Cleanup(func() { _ = fixed.Close() })
	for _, client := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil), ring, fixed, wrapped{}} {
		_, err := goredis.New(client, redislock.Config{})
		if invalid, ok := errors.AsType[*backend.InvalidError](err); !ok || invalid.Field != "client" {
			t.Errorf("%T: %v", client, err)
		}
	}
	if _, err := goredis.New(single(t, "127.0.0.1:1"), redislock.Config{Prefix: "a b"}); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("a bad prefix: %v", err)
	}
}

type wrapped struct{ redis.UniversalClient }

// A server that accepts no more connections says so.
func TestMaxClients(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	s.Crowd()
	for _, db := range []int{0, 1} {
		client := redis.NewClient(&redis.Options{Addr: s.Addr(), DB: db})
		t.Cleanup(func() { _ = client.Close() })
		_, err := goredis.New(client, redislock.Config{RequestTimeout: answered})
		away, ok := errors.AsType[*backend.UnavailableError](err)
		if !ok || away.MayHold || errors.Is(err, backend.ErrRefused) || !strings.Contains(err.Error(), "max number of clients") {
			t.Errorf("database %d: %v", db, err)
		}
	}
}
