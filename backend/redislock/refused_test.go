package redislock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// mute connects as a user that may not publish: from Redis 7 on a user has no channels unless
// some are named.
func mute(t *testing.T, s *testserver.RedisServer, cfg redislock.Config) *redislock.Backend {
	t.Helper()
	s.Do("ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all")
	return openAs(t, s, cfg, "mute")
}

// openAs connects as a user whose password is "secret".
func openAs(t *testing.T, s *testserver.RedisServer, cfg redislock.Config, user string) *redislock.Backend {
	t.Helper()
	b, err := redislock.Open(t.Context(), "redis://"+user+":secret@"+s.Addr(), cfg)
	return leasetest.Opened(t, b, err)
}

// A lost notification, here one that is refused, costs the waiter its timer, and is reported. The operation is done as
// a whole: each lease is released and handed over, and the lock is free at the end.
func TestRefusedNotifications(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		const ttl = 12 * time.Second                 // the lock is released in this time
		for what, change := range map[string]change{ // of the user without channels
			"timed":     timed(ttl),
			"exclusive": func(*backend.AcquireRequest) {},
			"shared":    shared,
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				s, cfg := quick(t, append(slices.Clip(args), "--appendonly", "no")...) // the disk does not delay it
				opened, other := mute(t, s, cfg), on(t, s, cfg)
				b := mortal(t, opened, ttl)
				l := b.take("one", change)
				w := other.asks("one", 1)
				b.give(l)
				other.heldBy("one", 0, w.Lease)
				next := w.granted(t)
				if !next.ByTimer || next.Token <= l.Token {
					t.Errorf("the grant is %+v after %+v", next.Grant, l.Grant)
				}
				other.give(next)
				other.give(other.take("one"))
			})
		}
	})
}

// The same while there is a watcher, whose stream the user may not publish to.
func TestRefusedEvents(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, other := withSession(t, mute(t, s, cfg)), on(t, s, cfg)
	watching(t, other.Backend)
	l := b.take("one", timed(time.Minute))
	is(t, "acquire of what is held", other.try("one"), backend.ErrHeld)
	b.give(l)
	other.take("one")
}

// A request about a waiter is refused: the lease still is in the queue, and may be granted.
func TestRefusedCheckOfAWaiter(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b, other := on(t, s, cfg), on(t, s, cfg)
	other.take("one", timed(20*time.Second))
	w := b.asks("one", 1)
	s.Do("CONFIG", "SET", "min-replicas-to-write", "1")
	err := w.ends(t)
	s.Do("CONFIG", "SET", "min-replicas-to-write", "0")
	away(t, "acquire", err, true)
	leasetest.Succeeds(t, func() error {
		_ = other.try("two") // whose call hands the lock over
		info, err := other.Inspect(t.Context(), "one")
		if err == nil && (len(info.Holders) != 1 || info.Holders[0].Lease != w.Lease) {
			err = errors.New("the waiter was not granted the lock")
		}
		return err
	})
	// Its release, as that of any lease in doubt, prevents a later grant.
	b.give(lease{AcquireRequest: w.AcquireRequest})
	_, err = b.Acquire(t.Context(), w.AcquireRequest)
	is(t, "acquire after the release of a lease in doubt", err, backend.ErrLost)
}

// A timed lease was granted from the queue, and only the request for its remaining time is
// refused.
func TestRefusedCheckOfAGrant(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	s.Do("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
	b, other := withSession(t, openAs(t, s, cfg, "app")), on(t, s, cfg)
	held := other.take("one", timed(time.Minute))
	w := ask(t, b.Backend, b.req("one", timed(time.Minute)))
	inQueue(t, other.Backend, "one", 1)
	s.Do("ACL", "SETUSER", "app", "-fcall", "-function", "-eval", "-evalsha")
	other.give(held)
	away(t, "acquire", w.ends(t), true)
	other.heldBy("one", 0, w.Lease)
}

// A server that accepts no more connections says so. That passes, so it is no refusal.
func TestMaxClients(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, c, g := testserver.Redis(t), testserver.StartRedisCluster(t, 3), testserver.StartRedisSentinels(t)
	opened := on(t, s, redislock.Config{Quarantine: redislock.NoQuarantine, RequestTimeout: 5 * time.Second})
	for _, full := range append(c.Masters(), s, g.Master) {
		full.Crowd()
	}
	says := func(what string, err error) {
		if away(t, what, err, false); errors.Is(err, backend.ErrRefused) || err != nil && !strings.Contains(err.Error(), "max number of clients") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for name, url := range map[string]string{
		"one":      "redis://" + s.Addr(),
		"database": "redis://" + s.Addr() + "/1",
		"socket":   "redis+unix://" + s.Socket(),
		"cluster":  "redis+cluster://" + testserver.RedisAddrs(c.Masters()),
		"sentinel": "redis+sentinel://" + g.Addrs() + "/" + testserver.SentinelMaster,
	} {
		_, err := redislock.Open(within(t, patience), url, redislock.Config{RequestTimeout: answered})
		says(name, err)
	}
	says("a subscription", opened.try("one", waits))
}

// A refusal does not read all who hold the lock.
func TestRefusedByMany(t *testing.T) {
	t.Parallel()
	const n = 100
	s, cfg := quick(t)
	b, permit := on(t, s, cfg), func(r *backend.AcquireRequest) { r.Mode, r.Limit = backend.Shared, n }
	for range n {
		b.take("one", permit)
	}
	s.ResetStats()
	is(t, "acquire", b.try("one", permit), backend.ErrHeld)
	if calls := s.CommandStats()["hgetall"]; calls > 0 {
		t.Errorf("all holders were read %d times", calls)
	}
}
