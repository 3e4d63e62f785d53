package redislock_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// quarantined fails unless err says that nothing is granted for at least d more.
func quarantined(t testing.TB, err error, d time.Duration) {
	t.Helper()
	var away *backend.UnavailableError
	if !errors.As(err, &away) || !errors.Is(err, backend.ErrQuarantine) || away.MayHold || away.RetryAfter < d {
		t.Errorf("in quarantine for %s or more: %v", d, err)
	}
}

// marker returns the fields of the marker: see lua/marker.lua.
func marker(s *testserver.RedisServer) []string {
	return strings.Fields(fmt.Sprint(s.Do("GET", "{hf0}:m")))
}

// mark changes one field of the marker.
func mark(s *testserver.RedisServer, field int, value string) {
	all := marker(s)
	all[field] = value
	s.Do("SET", "{hf0}:m", strings.Join(all, " "))
}

// quarantineFor makes the server grant nothing for d, as a client does that knew of a longer
// TTL than the others.
func quarantineFor(t testing.TB, s *testserver.RedisServer, d time.Duration) {
	t.Helper()
	now, _ := s.Do("TIME").([]any)
	seconds, err := strconv.ParseInt(fmt.Sprint(now[0]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	mark(s, 2, strconv.FormatInt(time.Unix(seconds+1, 0).Add(d).UnixMicro(), 10))
}

// waits makes an acquire wait.
func waits(r *backend.AcquireRequest) { r.Wait = true }

// Leases that were queued when the quarantine began keep their places: they are granted in
// their order when it has ended, and their callers learn of it from their next request.
func TestQuarantineOfThoseInQueue(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b := on(t, s, cfg)
	l, first, second := b.take("one"), b.asks("one", 1), b.asks("one", 2)
	began := time.Now()
	const long = 15 * time.Second // what is asked in the quarantine takes less
	quarantineFor(t, s, long)
	is(t, "while it is held", b.try("one"), backend.ErrHeld)
	b.give(l)
	quarantined(t, b.try("one", func(r *backend.AcquireRequest) { *r = first.AcquireRequest; r.Wait = false }), time.Millisecond)
	quarantined(t, b.try("one"), time.Millisecond)
	l = first.granted(t)
	if took := time.Since(began); took < long {
		t.Errorf("granted after %s", took)
	}
	b.give(l)
	if next := second.granted(t); next.Token <= l.Token {
		t.Errorf("token %d after %d", next.Token, l.Token)
	}
}

// A server that was just started and has no data may have lost it.
func TestQuarantineOfAFreshServer(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	began := time.Now() // of the server, too
	s := testserver.Redis(t)
	const long = 20 * time.Second // what is asked in the quarantine takes less
	b := mortal(t, open(t, s, redislock.Config{Quarantine: long}), time.Minute)
	quarantined(t, b.try("one"), time.Millisecond)
	// A waiter is refused, too: none joins the queue of a lock that has no holder.
	err := b.try("one", waits)
	quarantined(t, err, time.Millisecond)
	b.heldBy("one", 0)
	quarantined(t, b.Quarantined(t.Context()), time.Millisecond)
	q, _ := errors.AsType[*backend.QuarantineError](err)
	if q == nil || q.Backend != "redis" || q.Parameter != "quarantine=off" || q.Left <= 0 || time.Until(q.Until) > long+2*time.Second ||
		q.Reason != "the server is new or lost its data" {
		t.Errorf("told %+v", q)
	}
	// A client that turned the quarantine off does not keep it.
	mortal(t, open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine}), time.Minute).take("two")
	leasetest.Succeeds(t, func() error { return b.try("one", waits) })
	if took := time.Since(began); took < long-time.Second {
		t.Errorf("granted after %s", took)
	}
	// It has ended for good.
	if err := errors.Join(b.Quarantined(t.Context()), on(t, s, redislock.Config{Quarantine: long}).try("three")); err != nil {
		t.Errorf("after the quarantine: %v", err)
	}
}

// The wait of each client counts for that client, whichever comes first. A client with the
// quarantine off, or with a shorter one, ends it for no other.
func TestQuarantineOfEachClient(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{"off", "short", "long"}, {"long", "short", "off"}} {
		t.Run(order[0]+" first", func(t *testing.T) {
			t.Parallel()
			s := testserver.Redis(t)
			lasts := map[string]time.Duration{"off": redislock.NoQuarantine, "short": time.Millisecond, "long": time.Hour}
			all := make(map[string]*client)
			for _, name := range order {
				b := open(t, s, redislock.Config{Quarantine: lasts[name]})
				all[name] = mortal(t, b, time.Minute)
			}
			settled(t, all["short"].Backend)
			held := all["off"].take("one")
			quarantined(t, all["long"].try("two"), 50*time.Minute)
			quarantined(t, all["long"].Quarantined(t.Context()), 50*time.Minute)
			// Another client's release would hand the lock over to a waiter.
			quarantined(t, all["long"].try("one", waits), 50*time.Minute)
			all["long"].heldBy("one", 0, held.Lease)
			all["off"].give(held)
		})
	}
}

// The longest TTL in use before a loss counts for all clients but those with the quarantine off,
// also where one of these hands a lock over.
func TestQuarantineBesideOff(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, off := on(t, s, cfg), on(t, s, redislock.Config{Quarantine: redislock.NoQuarantine})
	one, two := off.take("one"), off.take("two")
	keeps, free := b.asks("one", 1), off.asks("two", 1)
	quarantineFor(t, s, time.Hour)
	off.give(one)
	off.give(two)
	free.granted(t)
	off.heldBy("one", 1)
	quarantined(t, off.try("one"), 50*time.Minute) // it would overtake
	select {
	case <-keeps.done:
		t.Errorf("granted in the quarantine: %v", keeps.err)
	default:
	}
}

// The quarantine of a new server counts from its start, whenever its first client comes.
func TestQuarantineOfAServerThatWasIdle(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	isUp(t, s, 3)
	b := open(t, s, redislock.Config{Quarantine: 2 * time.Second})
	var err error
	leasetest.Eventually(t, "the session lives until the request", func() bool { // a longer one prolongs the quarantine
		err = mortal(t, b, time.Second).try("one")
		return !errors.Is(err, backend.ErrSessionLost)
	})
	if err != nil {
		t.Error(err)
	}
}

// isUp waits until the server has been up for more than so many seconds: for longer than the quarantine.
func isUp(t *testing.T, s *testserver.RedisServer, seconds int) {
	t.Helper()
	leasetest.Eventually(t, "it has been up for long", func() bool {
		_, rest, _ := strings.Cut(s.Info("server"), "uptime_in_seconds:")
		up, _, _ := strings.Cut(rest, "\r")
		n, err := strconv.Atoi(up)
		return err == nil && n > seconds
	})
}

// The longest TTL in use decides, if it is longer than the configured quarantine.
func TestQuarantineOfTheLongestTTL(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	c := mortal(t, b, time.Minute)
	c.take("timed", timed(time.Hour))
	s.RestartEmpty()
	leasetest.Succeeds(t, func() error { // its connections must be made again
		err := c.try("one")
		if errors.Is(err, backend.ErrSessionLost) {
			return nil
		}
		return err
	})
	c.id = session(t, b, time.Minute)
	quarantined(t, c.try("one"), 59*time.Minute)
}

// A holder with a longer TTL than the others know of sends nothing for a long time. When the
// server comes back without its data, the holder reports its TTL as soon as it has
// reconnected.
func TestHoldersTellOfTheirTTLs(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	holder := open(t, s, cfg)
	id, _ := lossy(t, holder, time.Hour)
	acquire(t, holder, backend.AcquireRequest{Name: "one", Session: id})
	s.RestartEmpty()
	stranger := open(t, s, redislock.Config{Quarantine: patience})
	leasetest.Succeeds(t, func() error {
		err := stranger.Quarantined(t.Context())
		if q, ok := errors.AsType[*backend.QuarantineError](err); !ok || q.Left < 59*time.Minute {
			return fmt.Errorf("no client has reported the TTL of one hour: %w", err)
		}
		return nil
	})
}

// FLUSHALL: a client that knew the data keeps the quarantine, its sessions are lost, and
// every listener is notified immediately.
func TestFlushAll(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	opened, other := open(t, s, cfg), open(t, s, cfg)
	id, told := lossy(t, opened, time.Minute)
	b := &client{opened, t, id}
	held, a := b.take("one"), b.asks("one", 1)
	s.FlushAll()
	// Any call of any client finds out, and the first Backend is notified by push.
	if _, err := other.Inspect(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if l := next(t, told); l.Session != id || l.Lease != "" || l.Cause != backend.CauseGone {
		t.Errorf("told %+v", l)
	}
	is(t, "who waited", a.ends(t), backend.ErrSessionLost)
	if r, err := b.Renew(t.Context(), backend.RenewRequest{Session: id}); err != nil || !r.SessionLost {
		t.Errorf("renew: %+v %v", r, err)
	}
	quarantined(t, on(t, s, redislock.Config{}).try("one"), 50*time.Second)
	// Tokens grow nevertheless.
	off, last := open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine}), held.Token
	for range 5 {
		g := withSession(t, off).take("one")
		if g.Token <= last {
			t.Errorf("token %d after %d", g.Token, last)
		}
		last = g.Token
		s.FlushAll()
	}
}

// A Backend that connects after data was lost keeps the quarantine too, whether others that knew the data still listen or
// not: a lease can be held by a process that has no connection, and the server knows that it was emptied. It has been
// up for longer than the quarantine, which would have ended if it were new.
func TestEmptiedBeforeAStranger(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for _, c := range []struct {
		name  string
		args  []string
		empty func(*testserver.RedisServer)
	}{
		{"with a listener", nil, (*testserver.RedisServer).FlushAll},
		{"flushed", nil, (*testserver.RedisServer).FlushAll},
		{"flushed, functions too", nil, func(s *testserver.RedisServer) { s.FlushAll(); s.Do("FUNCTION", "FLUSH") }},
		{"deleted", nil, func(s *testserver.RedisServer) {
			for _, key := range s.Do("KEYS", "*").([]any) {
				s.Do("DEL", key.(string))
			}
		}},
		{"a script", scriptsOnly(), func(s *testserver.RedisServer) { s.FlushAll(); s.Do("CONFIG", "RESETSTAT") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := testserver.Redis(t, c.args...)
			cfg := redislock.Config{Quarantine: 15 * time.Second, RequestTimeout: answered} // a request that follows takes less
			b, err := redislock.Open(t.Context(), "redis://"+s.Addr(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			settled(t, b)
			id, _ := lossy(t, b, time.Minute) // as in package holdfast: it listens
			acquire(t, b, backend.AcquireRequest{Name: "one", Session: id, Timed: true, TTL: time.Minute})
			if c.name != "with a listener" {
				if err := b.Close(); err != nil { // the lease lives on without it
					t.Fatal(err)
				}
				leasetest.Eventually(t, "nobody listens", func() bool {
					all, _ := s.Do("PUBSUB", "CHANNELS", "*").([]any)
					return len(all) == 0
				})
			}
			c.empty(s)
			next := open(t, s, cfg)
			quarantined(t, mortal(t, next, time.Minute).try("one"), time.Second)
		})
	}
}
