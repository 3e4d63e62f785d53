package redislock_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// withClock starts a server whose clock the test sets.
func withClock(t *testing.T) (*testserver.RedisServer, redislock.Config, *testserver.Clock) {
	t.Helper()
	s, clock := testserver.WithClock(t, testserver.Redis(t))
	cfg := redislock.Config{Quarantine: time.Millisecond}
	settled(t, open(t, s, cfg))
	return s, cfg, clock
}

// F12: the server's clock jumps ahead.
func TestServerClockAhead(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg, clock := withClock(t)
	leasetest.ClockAhead(t, open(t, s, cfg), open(t, s, cfg), clock)
}

// F13: the server's clock jumps back. The remaining time of a timed lease is not known then.
func TestServerClockBack(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg, clock := withClock(t)
	leasetest.ClockBack(t, open(t, s, cfg), open(t, s, cfg), clock, false)
}

// The clock goes back during a quarantine, while the memory is full: the quarantine begins again, once.
func TestServerClockBackWithFullMemory(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg, clock := withClock(t)
	x := open(t, s, cfg)
	const ttl = 2 * time.Second
	session(t, x, ttl)
	s.FlushAll()
	b := mortal(t, x, ttl)
	leasetest.Succeeds(t, func() error { b.renews(); return b.try("free") })
	held := b.take("one")
	next := b.asks("one", 1)
	clock.Set(-time.Hour)
	s.Do("CONFIG", "SET", "maxmemory", "1mb")
	b.give(held)
	leasetest.Eventually(t, "the lock is handed over", func() bool {
		b.renews()
		select {
		case <-next.done:
			return next.err == nil
		case <-time.After(ttl / 8):
			return false
		}
	})
}

// The longest TTL in use is known for as long as any lease with it may be held, however many
// shorter ones are taken in the meantime. Long afterwards it is forgotten.
func TestLongestTTLIsRemembered(t *testing.T) {
	t.Parallel()
	s, cfg, clock := withClock(t)
	b := &client{Backend: open(t, s, cfg), t: t}
	at := func(d time.Duration, want bool) {
		t.Helper()
		clock.Set(d)
		for _, mode := range []backend.Mode{backend.Exclusive, backend.Shared} { // the short way and the long way
			b.take(fmt.Sprint(d, mode), timed(redislock.MinTTL), func(r *backend.AcquireRequest) { r.Mode = mode })
		}
		if longest := marker(s)[3]; (longest == "3600000") != want {
			t.Errorf("after %s: %s ms", d, longest)
		}
	}
	held := b.take("one", timed(time.Hour))
	at(30*time.Minute, true)
	r, err := b.Renew(t.Context(), backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: held.Name, Lease: held.Lease, TTL: time.Hour}}})
	if err != nil || r.Leases[0].Err != nil {
		t.Fatalf("renew: %+v, %v", r, err)
	}
	at(80*time.Minute, true) // it is held until 90
	b.take("two", timed(time.Hour))
	at(130*time.Minute, true) // until 140
	at(6*time.Hour, false)
}

// When the clock goes back, a session ends by its TTL from then on. It cannot take a lock after that.
func TestSessionEndsAfterTheClockWentBack(t *testing.T) {
	t.Parallel()
	s, cfg, clock := withClock(t)
	b, other := open(t, s, cfg), open(t, s, cfg)
	const ttl = time.Minute
	id := session(t, b, ttl)
	leasetest.Take(t, b, leasetest.Ask("held", id))
	clock.Set(-time.Hour)
	if info, err := other.Inspect(leasetest.Within(t), "held"); err != nil || len(info.Holders) != 1 || info.Holders[0].Left > ttl {
		t.Fatalf("after the clock went back: %+v, %v", info, err)
	}
	clock.Set(-time.Hour + 2*ttl)
	if g, err := b.Acquire(leasetest.Within(t), leasetest.Ask("free", id)); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("Acquire under a session that ended returned %+v, %v", g, err)
	}
}
