package redislock_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func openURL(t testing.TB, url string) *redislock.Backend {
	t.Helper()
	b, err := redislock.Open(t.Context(), url, redislock.Config{})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func groupConformance(t *testing.T, url string) {
	t.Helper()
	settled(t, openURL(t, url))
	suite(t, opening(url, redislock.Config{}))
}

// suite runs what the way to the server changes.
func suite(t *testing.T, open func(backendtest.T) backend.Backend) {
	t.Helper()
	backendtest.Run(t, backendtest.Harness{
		Only:      leasetest.Transport(),
		Open:      open,
		NoRestart: "it keeps clear of leases for their longest TTL, which some cases make a day",
	})
}

// A Cluster of three masters.
func TestConformanceCluster(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3)
	groupConformance(t, "redis+cluster://"+testserver.RedisAddrs(c.Masters())+"?quarantine=100ms&timeout=30s")
}

// clusterClient returns a Cluster client as a program has it.
func clusterClient(t *testing.T, c *testserver.RedisCluster) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{c.Masters()[0].Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// The Cluster client of a program.
func TestConformanceClusterClient(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	client := clusterClient(t, testserver.StartRedisCluster(t, 3))
	cfg := redislock.Config{Quarantine: 100 * time.Millisecond, RequestTimeout: 30 * time.Second}
	b, err := redislock.New(client, cfg)
	settled(t, leasetest.Opened(t, b, err))
	suite(t, func(t backendtest.T) backend.Backend {
		b, err := redislock.New(client, cfg)
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		return b
	})
}

// Sentinels, without WAIT and with it.
func TestConformanceSentinel(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for name, params := range map[string]string{"alone": "", "replicas": "&replicas=1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := testserver.StartRedisSentinels(t)
			groupConformance(t, "redis+sentinel://"+g.Addrs()+"/"+testserver.SentinelMaster+"?quarantine=100ms&timeout=30s"+params)
		})
	}
}

// lossy opens a session that reports its losses.
func lossy(t *testing.T, b *redislock.Backend, ttl time.Duration) (backend.SessionID, <-chan backend.Loss) {
	t.Helper()
	const plenty = 16
	losses := make(chan backend.Loss, plenty)
	id := sessionWith(t, b, ttl, func(l backend.Loss) {
		select {
		case losses <- l:
		default:
		}
	})
	return id, losses
}

// keepAsking renews until the loss is reported, as a client does.
func keepAsking(t *testing.T, b *redislock.Backend, id backend.SessionID, losses <-chan backend.Loss) {
	t.Helper()
	leasetest.Succeeds(t, func() error {
		select {
		case <-losses:
			return nil
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, err := b.Renew(ctx, backend.RenewRequest{Session: id})
		if err == nil && r.SessionLost {
			return nil
		}
		return errors.Join(errors.New("the loss is not told"), err)
	})
}

// Replication is asynchronous: the newest grant is not on the replica that takes over. The
// lock is not granted again before the loss was reported to the holder and its time has
// expired, and then with a greater token.
func TestFailOverLosesAGrant(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const ttl = 20 * time.Second
	g := testserver.StartRedisSentinels(t)
	url := "redis+sentinel://" + g.Addrs() + "/" + testserver.SentinelMaster + "?timeout=30s&quarantine="
	a := openURL(t, url+"5s")
	settled(t, a)
	id, losses := lossy(t, a, ttl)
	before := acquire(t, a, backend.AcquireRequest{Name: "before", Session: id})
	if n := g.Master.Do("WAIT", "1", "20000"); n != int64(1) {
		t.Fatalf("%v replicas", n)
	}
	g.Replica.Process().Stop()
	g.Master.Do("CLIENT", "KILL", "TYPE", "replica")                      // or it would find what comes next in its connection
	lost := acquire(t, a, backend.AcquireRequest{Name: "n", Session: id}) // only the master has it
	took := time.Now()
	g.Master.Kill()
	g.Replica.Process().Cont()
	g.AwaitFailOver()
	if rec := thin(g.Replica, "n"); rec != "" {
		t.Fatalf("the replica has the grant (%q): nothing was lost, and nothing is tested", rec)
	}
	// The holder is notified before another client can have it.
	b := openURL(t, url+"5s")
	_, err := b.Acquire(within(t, patience), backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: redislock.MinTTL})
	if !errors.Is(err, backend.ErrQuarantine) {
		t.Fatalf("acquire after the fail-over: %v; want ErrQuarantine", err)
	}
	keepAsking(t, a, id, losses)
	var next lease
	leasetest.Succeeds(t, func() error {
		g, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "n", Lease: "after-the-fail-over", Timed: true, TTL: time.Minute})
		next = lease{Grant: g}
		return err
	})
	if early := ttl - time.Since(took); early > time.Second {
		t.Errorf("granted again %s before the lost grant's TTL had elapsed", early)
	}
	if next.Token <= lost.Token || next.Token <= before.Token {
		t.Errorf("token %d after %d, which was lost", next.Token, lost.Token)
	}
}

// With WAIT a write that only the master has is no grant: the caller is told that it may hold
// the lock, and does not.
func TestFailOverWithReplicas(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	g := testserver.StartRedisSentinels(t)
	b := openURL(t, "redis+sentinel://"+g.Addrs()+"/"+testserver.SentinelMaster+"?timeout=6s&quarantine=100ms&replicas=1")
	settled(t, b)
	id := session(t, b, 10*time.Minute)
	held := acquire(t, b, backend.AcquireRequest{Name: "n", Session: id})
	g.Replica.Process().Stop()
	// WAIT on another connection returns a wrong answer; ours is on the one that wrote.
	_, err := b.Acquire(within(t, patience), backend.AcquireRequest{Name: "m", Lease: backend.NewLeaseID(), Session: id})
	var away *backend.UnavailableError
	if !errors.As(err, &away) || !errors.Is(err, redislock.ErrReplicas) || !away.MayHold {
		t.Fatalf("acquire while the replica is stopped: %v; want ErrReplicas, and that it may be held", err)
	}
	if _, err := b.Renew(within(t, patience), backend.RenewRequest{Session: id}); !errors.Is(err, redislock.ErrReplicas) {
		t.Errorf("renew while the replica is stopped: %v; want ErrReplicas", err)
	}
	g.Replica.Process().Cont()
	leasetest.Succeeds(t, func() error {
		_, err := b.Renew(t.Context(), backend.RenewRequest{Session: id})
		return err
	})
	// A grant that counts exists after the fail-over.
	g.Master.Kill()
	g.AwaitFailOver()
	if rec := thin(g.Replica, "n"); !strings.HasPrefix(rec, "n\n"+string(held.Lease)+"\n") {
		t.Errorf("the grant is not on the replica, but %q", rec)
	}
}

// A hand-over counts when the replicas have it, not when it is pushed.
func TestHandOverWithReplicas(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	g := testserver.StartRedisSentinels(t)
	url := "redis+sentinel://" + g.Addrs() + "/" + testserver.SentinelMaster + "?timeout=6s&quarantine=100ms"
	careless, careful := openURL(t, url), openURL(t, url+"&replicas=1")
	settled(t, careful)
	held := acquire(t, careless, backend.AcquireRequest{Name: "n", Session: session(t, careless, 10*time.Minute)})
	w := ask(t, careful, backend.AcquireRequest{Name: "n", Session: session(t, careful, 10*time.Minute)})
	inQueue(t, careless, "n", 1)
	g.Replica.Process().Stop()
	release(t, careless, held) // hands over, and pushes
	if err := w.ends(t); !errors.Is(err, redislock.ErrReplicas) {
		t.Errorf("the waiter got %v; want ErrReplicas", err)
	}
	g.Replica.Process().Cont()
}

// A slot is migrating from one server to another: its keys are on both. No client is granted
// what is held, whichever keys have moved; and afterwards everything is as before.
func TestSlotMoves(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for name, watched := range map[string]bool{"quiet": false, "watched": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := testserver.StartRedisCluster(t, 3)
			slotMoves(t, c, openURL(t, "redis+cluster://"+testserver.RedisAddrs(c.Masters())+"?timeout=30s&quarantine=off"), watched)
		})
	}
	t.Run("client of a program", func(t *testing.T) { // it would follow ASK
		t.Parallel()
		c := testserver.StartRedisCluster(t, 3)
		b, err := redislock.New(clusterClient(t, c), redislock.Config{Quarantine: redislock.NoQuarantine, RequestTimeout: answered})
		slotMoves(t, c, leasetest.Opened(t, b, err), false)
	})
}

func slotMoves(t *testing.T, c *testserver.RedisCluster, b *redislock.Backend, watched bool) {
	t.Helper()
	settled(t, b)
	id, losses := lossy(t, b, 10*time.Minute)
	held := acquire(t, b, backend.AcquireRequest{Name: "n", Session: id})
	timed := acquire(t, b, backend.AcquireRequest{Name: "t", Timed: true, TTL: 10 * time.Minute})
	slot := c.Slot("{hf0}:m")
	if watched { // then none of the keys is missing that every request reads
		c.Owner("{hf0}:m").Do("SET", "{hf0}:v", "1")
	}
	rounds := 0
	for _, first := range []string{"{hf0}:m", "{hf0}:t", "{hf0}:f", "{hf0}:x", "{hf0}:s:" + string(id)} {
		from := c.Owner("{hf0}:m")
		i := slices.Index(c.Masters(), from)
		to := c.Masters()[(i+1)%3]
		keys := c.Keys(from, slot)
		slices.SortFunc(keys, func(x, y string) int {
			switch {
			case x == first:
				return -1
			case y == first:
				return 1
			}
			return strings.Compare(x, y)
		})
		c.BeginMove(slot, from, to)
		for k := range len(keys) + 1 {
			for _, name := range []string{"n", "t"} {
				_, err := b.Acquire(within(t, patience), backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: id})
				if !errors.Is(err, backend.ErrHeld) && !errors.Is(err, backend.ErrUnavailable) {
					t.Fatalf("%s first, %d of %d keys moved: acquire of %q gave %v", first, k, len(keys), name, err)
				}
				rounds++
			}
			if k < len(keys) {
				c.MoveKeys(from, to, keys[k])
			}
		}
		c.EndMove(slot, from, to)
		leasetest.Succeeds(t, func() error {
			info, err := b.Inspect(t.Context(), "n")
			if err == nil && (len(info.Holders) != 1 || info.Holders[0].Token != held.Token) {
				t.Fatalf("after the move: %+v", info)
			}
			return err
		})
		if r, err := b.Renew(t.Context(), backend.RenewRequest{Session: id}); err != nil || r.SessionLost {
			t.Fatalf("renew after the move: %+v, %v", r, err)
		}
	}
	t.Logf("%d refusals", rounds)
	select {
	case <-losses:
	default:
		t.Error("no loss was reported, although data may be missing")
	}
	release(t, b, held)
	release(t, b, timed)
	if next := acquire(t, b, backend.AcquireRequest{Name: "n", Session: id}); next.Token <= held.Token {
		t.Errorf("token %d after %d", next.Token, held.Token)
	}
}

// A waiter keeps waiting while the slot moves, and is woken on the new server.
func TestWaiterOverAMove(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3)
	b := openURL(t, "redis+cluster://"+testserver.RedisAddrs(c.Masters())+"?timeout=30s&quarantine=off")
	settled(t, b)
	id := session(t, b, 10*time.Minute)
	held := acquire(t, b, backend.AcquireRequest{Name: "n", Session: id})
	w := ask(t, b, backend.AcquireRequest{Name: "n", Session: id})
	inQueue(t, b, "n", 1)
	from := c.Owner("{hf0}:m")
	to := c.Masters()[(slices.Index(c.Masters(), from)+1)%3]
	slot := c.Slot("{hf0}:m")
	c.BeginMove(slot, from, to)
	c.EndMove(slot, from, to)
	inQueue(t, b, "n", 1)
	release(t, b, held)
	w.granted(t)
}

// A release that arrives while some keys of the slot are on the new server does all or nothing: a waiter
// is granted the lock once, and the lock is free afterwards.
func TestHandOverWhileASlotMoves(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3)
	b := openURL(t, "redis+cluster://"+testserver.RedisAddrs(c.Masters())+"?timeout=30s&quarantine=off")
	settled(t, b)
	slot := c.Slot("{hf0}:m")
	// The keys that every request reads are there, and move last, so that it gets further.
	c.Owner("{hf0}:m").Do("SET", "{hf0}:v", "1")
	last := func(key string) int {
		if strings.Contains("{hf0}:m {hf0}:v {hf0}:x", key) {
			return 0
		}
		return 1
	}
	id, next := session(t, b, 10*time.Minute), session(t, b, 10*time.Minute)
	for moved, all := 0, 1; moved < all; moved++ {
		name := "n" + strconv.Itoa(moved)
		held := leasetest.Ask(name, id)
		leasetest.Succeeds(t, func() error { _, err := b.Acquire(within(t, patience), held); return err })
		waits := leasetest.Ask(name, next)
		waits.Wait = true
		got := leasetest.Start(t, b, waits)
		inQueue(t, b, name, 1)
		from := c.Owner("{hf0}:m")
		to := c.Masters()[(slices.Index(c.Masters(), from)+1)%3]
		keys := c.Keys(from, slot)
		slices.SortFunc(keys, func(x, y string) int { return cmp.Or(last(x)-last(y), strings.Compare(x, y)) })
		all = len(keys)
		c.BeginMove(slot, from, to)
		c.MoveKeys(from, to, keys[moved:]...)
		err := b.Release(within(t, patience), backend.ReleaseRequest{Name: name, Lease: held.Lease, Session: id})
		if err != nil && !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("release with %d of %d keys moved: %v", all-moved, all, err)
		}
		c.MoveKeys(from, to, keys[:moved]...)
		c.EndMove(slot, from, to)
		leasetest.Succeeds(t, func() error {
			err := b.Release(within(t, patience), backend.ReleaseRequest{Name: name, Lease: held.Lease, Session: id})
			if errors.Is(err, backend.ErrLost) {
				return nil
			}
			return err
		})
		if a := <-got; a.Err != nil { // it asked during the move
			leasetest.Succeeds(t, func() error { _, err := b.Acquire(within(t, patience), waits); return err })
		}
		leasetest.Give(t, b, waits)
		if info, err := b.Inspect(within(t, patience), name); err != nil || len(info.Holders)+len(info.Waiters) != 0 {
			t.Errorf("with %d of %d keys moved: %+v, %v; want a free lock", all-moved, all, info, err)
		}
	}
}

// The servers of a group that cannot be reached, or do not know it, are reported by name; a
// password never is.
func TestGroupThatIsNotThere(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis+cluster://:secret@127.0.0.1:1,127.0.0.1:2",
		"redis+sentinel://:secret@127.0.0.1:1,127.0.0.1:2/locks",
	} {
		_, err := redislock.Open(within(t, patience), url+"?timeout=500ms", redislock.Config{})
		if !errors.Is(err, backend.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{
		"redis+cluster://:secret@h1,h2/3", "redis+cluster://:secret@", "redis+sentinel://:secret@h1,h2", "redis+sentinel://:secret@h1/a%20b",
		"redis+sentinel://:secret@h1/locks/x", "redis+cluster://:secret@h1?replicas=17", "redis+cluster://:secret@h1?replica=1", "redis+other://:secret@h",
	} {
		_, err := redislock.Open(t.Context(), url, redislock.Config{})
		if !errors.Is(err, backend.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v; want *InvalidError", url, err)
		}
	}
}
