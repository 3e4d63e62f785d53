package redislock_test

import (
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

func openURL(t *testing.T, url string) *redislock.Backend {
	t.Helper()
	b, err := redislock.Open(t.Context(), url, redislock.Config{})
	return leasetest.Opened(t, b, err)
}

// suite runs what the way to the server changes.
func suite(t *testing.T, open func() (*redislock.Backend, error)) {
	t.Helper()
	b, err := open()
	settled(t, leasetest.Opened(t, b, err))
	backendtest.Run(t, backendtest.Harness{
		Only:      leasetest.Transport(),
		Open:      opening(open),
		NoRestart: "it keeps clear of leases for their longest TTL, which some cases make a day",
	})
}

// A Cluster of three masters, and the Cluster client of a program.
func TestConformanceCluster(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	t.Run("URL", func(t *testing.T) {
		t.Parallel()
		suite(t, at("redis+cluster://"+testserver.RedisAddrs(testserver.StartRedisCluster(t, 3).Masters())+"?quarantine=100ms&timeout=30s"))
	})
	t.Run("client", func(t *testing.T) {
		t.Parallel()
		client := clusterClient(t, testserver.StartRedisCluster(t, 3))
		suite(t, func() (*redislock.Backend, error) {
			return redislock.New(client, redislock.Config{Quarantine: 100 * time.Millisecond, RequestTimeout: 30 * time.Second})
		})
	})
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

// Sentinels, without WAIT and with it.
func TestConformanceSentinel(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for name, params := range map[string]string{"alone": "", "replicas": "&replicas=1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := testserver.StartRedisSentinels(t)
			suite(t, at("redis+sentinel://"+g.Addrs()+"/"+testserver.SentinelMaster+"?quarantine=100ms&timeout=30s"+params))
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
	holder := &client{a, t, id}
	before := holder.take("before")
	if n := g.Master.Do("WAIT", "1", "20000"); n != int64(1) {
		t.Fatalf("%v replicas", n)
	}
	g.Replica.Process().Stop()
	g.Master.Do("CLIENT", "KILL", "TYPE", "replica") // or it would find what comes next in its connection
	lost := holder.take("n")                         // only the master has it
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
	var next backend.Grant
	leasetest.Succeeds(t, func() error {
		next, err = b.Acquire(t.Context(), backend.AcquireRequest{Name: "n", Lease: "after-the-fail-over", Timed: true, TTL: time.Minute})
		return err
	})
	if early := ttl - time.Since(took); early > time.Second {
		t.Errorf("granted again %s before the lost grant's TTL had elapsed", early)
	}
	if next.Token <= lost.Token || next.Token <= before.Token {
		t.Errorf("token %d after %d, which was lost", next.Token, lost.Token)
	}
}

// With WAIT a write that only the master has is no grant: the caller is told that it may hold the lock, and does not. Nor
// is a hand-over that was pushed.
func TestFailOverWithReplicas(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	g := testserver.StartRedisSentinels(t)
	url := "redis+sentinel://" + g.Addrs() + "/" + testserver.SentinelMaster + "?timeout=6s&quarantine=100ms"
	opened := openURL(t, url+"&replicas=1")
	settled(t, opened)
	b, careless := withSession(t, opened), withSession(t, openURL(t, url))
	held, other := b.take("n"), careless.take("handed over")
	w := b.asks("handed over", 1)
	g.Replica.Process().Stop()
	// WAIT on another connection returns a wrong answer; ours is on the one that wrote.
	err := b.try("m")
	away(t, "acquire while the replica is stopped", err, true)
	is(t, "acquire while the replica is stopped", err, redislock.ErrReplicas)
	_, err = b.Renew(within(t, patience), backend.RenewRequest{Session: b.id})
	is(t, "renew while the replica is stopped", err, redislock.ErrReplicas)
	careless.give(other) // hands over, and pushes
	is(t, "the waiter", w.ends(t), redislock.ErrReplicas)
	g.Replica.Process().Cont()
	leasetest.Succeeds(t, func() error {
		_, err := b.Renew(t.Context(), backend.RenewRequest{Session: b.id})
		return err
	})
	// A grant that counts exists after the fail-over.
	g.Master.Kill()
	g.AwaitFailOver()
	if rec := thin(g.Replica, "n"); !strings.HasPrefix(rec, "n\n"+string(held.Lease)+"\n") {
		t.Errorf("the grant is not on the replica, but %q", rec)
	}
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

// move is a move of the slot of all locks from its server to the next one.
type move struct {
	*testserver.RedisCluster
	from, to *testserver.RedisServer
	slot     string
	keys     []string
}

// beginMove begins one. Of the keys, those of whom first says so move first.
func beginMove(c *testserver.RedisCluster, first func(key string) bool) move {
	const marker = "{hf0}:m"
	from, slot := c.Owner(marker), c.Slot(marker)
	m := move{c, from, c.Masters()[(slices.Index(c.Masters(), from)+1)%3], slot, c.Keys(from, slot)}
	slices.SortFunc(m.keys, func(x, y string) int {
		if first(x) != first(y) {
			return map[bool]int{true: -1, false: 1}[first(x)]
		}
		return strings.Compare(x, y)
	})
	c.BeginMove(slot, from, m.to)
	return m
}

func (m move) end() { m.EndMove(m.slot, m.from, m.to) }

func slotMoves(t *testing.T, c *testserver.RedisCluster, opened *redislock.Backend, watched bool) {
	t.Helper()
	settled(t, opened)
	id, losses := lossy(t, opened, 10*time.Minute)
	b := &client{opened, t, id}
	held, long := b.take("n"), b.take("t", timed(10*time.Minute))
	if watched { // then none of the keys is missing that every request reads
		c.Owner("{hf0}:m").Do("SET", "{hf0}:v", "1")
	}
	for _, first := range []string{"{hf0}:m", "{hf0}:t", "{hf0}:f", "{hf0}:x", "{hf0}:s:" + string(id)} {
		m := beginMove(c, func(key string) bool { return key == first })
		for k := range len(m.keys) + 1 {
			for _, name := range []string{"n", "t"} {
				if err := b.try(name); !errors.Is(err, backend.ErrHeld) && !errors.Is(err, backend.ErrUnavailable) {
					t.Fatalf("%s first, %d of %d keys moved: acquire of %q gave %v", first, k, len(m.keys), name, err)
				}
			}
			if k < len(m.keys) {
				c.MoveKeys(m.from, m.to, m.keys[k])
			}
		}
		m.end()
		answers(t, opened)
		b.heldBy("n", 0, held.Lease)
	}
	select {
	case <-losses:
	default:
		t.Error("no loss was reported, although data may be missing")
	}
	b.give(held)
	b.give(long)
	if next := b.take("n"); next.Token <= held.Token {
		t.Errorf("token %d after %d", next.Token, held.Token)
	}
}

// A waiter keeps waiting while the slot moves, and is woken on the new server. A release that arrives while some keys of
// the slot are there does all or nothing: a waiter is granted the lock once, and the lock is free afterwards.
func TestHandOverWhileASlotMoves(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3)
	opened := openURL(t, "redis+cluster://"+testserver.RedisAddrs(c.Masters())+"?timeout=30s&quarantine=off")
	settled(t, opened)
	b, other := withSession(t, opened), withSession(t, opened)
	// The keys that every request reads are there, and move last, so that it gets further.
	c.Owner("{hf0}:m").Do("SET", "{hf0}:v", "1")
	first := func(key string) bool { return !strings.Contains("{hf0}:m {hf0}:v {hf0}:x", key) }
	held, w := b.take("n"), other.asks("n", 1)
	beginMove(c, first).end()
	inQueue(t, opened, "n", 1)
	b.give(held)
	other.give(w.granted(t))
	for moved, all := 0, 1; moved < all; moved++ {
		name := "n" + strconv.Itoa(moved)
		held, w := b.take(name), other.asks(name, 1)
		m := beginMove(c, first)
		all = len(m.keys)
		c.MoveKeys(m.from, m.to, m.keys[:all-moved]...)
		if err := b.drop(held); err != nil && !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("release with %d of %d keys moved: %v", all-moved, all, err)
		}
		c.MoveKeys(m.from, m.to, m.keys[all-moved:]...)
		m.end()
		leasetest.Succeeds(t, func() error {
			if err := b.drop(held); !errors.Is(err, backend.ErrLost) {
				return err
			}
			return nil
		})
		if w.ends(t) != nil { // it asked during the move
			leasetest.Succeeds(t, func() error { _, err := other.Acquire(within(t, patience), w.AcquireRequest); return err })
		}
		other.give(lease{AcquireRequest: w.AcquireRequest})
		other.heldBy(name, 0)
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
