package redislock_test

import (
	"context"
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// A refused notification costs the waiter its timer. The operation is done as a whole: each
// lease is released and handed over, and the lock is free at the end.
func TestRefusedNotifications(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		const ttl = 12 * time.Second // the lock is released in this time
		for _, c := range []struct {
			name  string
			claim backend.AcquireRequest // of the user without channels
		}{
			{"timed", backend.AcquireRequest{Timed: true, TTL: ttl}},
			{"exclusive", backend.AcquireRequest{}},
			{"shared", backend.AcquireRequest{Mode: backend.Shared}},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s, cfg := quick(t, append(slices.Clip(args), "--appendonly", "no")...) // the disk does not delay it
				b, other := mute(t, s, cfg), open(t, s, cfg)
				c.claim.Name = "one"
				if !c.claim.Timed {
					c.claim.Session = session(t, b, ttl)
				}
				l := acquire(t, b, c.claim)
				w := ask(t, other, backend.AcquireRequest{Name: "one", Session: session(t, other, time.Minute)})
				inQueue(t, other, "one", 1)
				release(t, b, l)
				if info, err := other.Inspect(t.Context(), "one"); err != nil || len(info.Holders) != 1 || len(info.Waiters) != 0 {
					t.Errorf("after the release: %+v, %v", info, err)
				}
				release(t, other, w.granted(t))
				release(t, other, acquire(t, other, backend.AcquireRequest{Name: "one", Session: session(t, other, time.Minute)}))
			})
		}
	})
}

// The same while there is a watcher, whose stream the user may not publish to.
func TestRefusedEvents(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, other := mute(t, s, cfg), open(t, s, cfg)
	ctx, stop := context.WithCancel(t.Context())
	events, ended := make(chan backend.Event, 100), make(chan struct{})
	go func() {
		defer close(ended)
		_ = other.Watch(ctx, backend.WatchRequest{}, func(e backend.Event) { events <- e })
	}()
	t.Cleanup(func() { stop(); <-ended })
	<-events // it watches
	l := acquire(t, b, backend.AcquireRequest{Name: "one", Timed: true, TTL: time.Minute})
	id := session(t, other, time.Minute)
	if _, err := try(t, other, "one", id); !errors.Is(err, backend.ErrHeld) {
		t.Errorf("acquire of what is held: %v", err)
	}
	release(t, b, l)
	acquire(t, other, backend.AcquireRequest{Name: "one", Session: id})
}

// A request about a waiter is refused: the lease still is in the queue, and may be granted.
func TestRefusedCheckOfAWaiter(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b, other := open(t, s, cfg), open(t, s, cfg)
	acquire(t, other, backend.AcquireRequest{Name: "one", Timed: true, TTL: 20 * time.Second})
	w := ask(t, b, backend.AcquireRequest{Name: "one", Session: session(t, b, time.Minute)})
	inQueue(t, b, "one", 1)
	s.Do("CONFIG", "SET", "min-replicas-to-write", "1")
	err := w.ends(t)
	s.Do("CONFIG", "SET", "min-replicas-to-write", "0")
	if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
		t.Errorf("acquire: %v; want MayHold", err)
	}
	leasetest.Succeeds(t, func() error {
		_, _ = try(t, other, "two", session(t, other, time.Minute)) // whose call hands the lock over
		info, err := other.Inspect(t.Context(), "one")
		if err == nil && (len(info.Holders) != 1 || info.Holders[0].Lease != w.Lease) {
			err = errors.New("the waiter was not granted the lock")
		}
		return err
	})
	// Its release, as that of any lease in doubt, prevents a later grant.
	release(t, b, lease{AcquireRequest: w.AcquireRequest})
	if _, err := b.Acquire(t.Context(), w.AcquireRequest); !errors.Is(err, backend.ErrLost) {
		t.Errorf("acquire after the release of a lease in doubt: %v", err)
	}
}

// A timed lease was granted from the queue, and only the request for its remaining time is
// refused.
func TestRefusedCheckOfAGrant(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	s.Do("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
	b, other := openAs(t, s, cfg, "app"), open(t, s, cfg)
	held := acquire(t, other, backend.AcquireRequest{Name: "one", Timed: true, TTL: time.Minute})
	w := ask(t, b, backend.AcquireRequest{Name: "one", Session: session(t, b, time.Minute), Timed: true, TTL: time.Minute})
	inQueue(t, other, "one", 1)
	s.Do("ACL", "SETUSER", "app", "-fcall", "-function", "-eval", "-evalsha")
	release(t, other, held)
	err := w.ends(t)
	if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
		t.Errorf("acquire: %v; want MayHold", err)
	}
	if info, err := other.Inspect(t.Context(), "one"); err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != w.Lease {
		t.Errorf("%+v, %v; want the lease of the waiter", info, err)
	}
}

// A server that accepts no more connections says so. That passes, so it is no refusal.
func TestMaxClients(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, c, g := testserver.Redis(t), testserver.StartRedisCluster(t, 3), testserver.StartRedisSentinels(t)
	opened := open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine, RequestTimeout: 5 * time.Second})
	id := session(t, opened, time.Minute)
	for _, full := range append(c.Masters(), s, g.Master) {
		full.Crowd()
	}
	for name, url := range map[string]string{
		"one":      "redis://" + s.Addr(),
		"database": "redis://" + s.Addr() + "/1",
		"socket":   "redis+unix://" + s.Socket(),
		"cluster":  "redis+cluster://" + testserver.RedisAddrs(c.Masters()),
		"sentinel": "redis+sentinel://" + g.Addrs() + "/" + testserver.SentinelMaster,
	} {
		_, err := redislock.Open(within(t, patience), url, redislock.Config{RequestTimeout: answered})
		saysCrowded(t, name, err)
	}
	_, err := opened.Acquire(within(t, patience), backend.AcquireRequest{
		Name: "one", Lease: backend.NewLeaseID(), Session: id, Wait: true,
	})
	saysCrowded(t, "a subscription", err)
}

func saysCrowded(t *testing.T, name string, err error) {
	t.Helper()
	away, ok := errors.AsType[*backend.UnavailableError](err)
	if !ok || away.MayHold || errors.Is(err, backend.ErrRefused) || !strings.Contains(err.Error(), "max number of clients") {
		t.Errorf("%s: %v", name, err)
	}
}
