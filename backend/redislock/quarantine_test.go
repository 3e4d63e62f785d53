package redislock_test

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// try acquires without waiting.
func try(t testing.TB, b *redislock.Backend, name string, id backend.SessionID) (backend.Grant, error) {
	t.Helper()
	return b.Acquire(within(t, patience), backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: id})
}

// quarantined fails unless err says that nothing is granted for at least d more.
func quarantined(t testing.TB, err error, d time.Duration) {
	t.Helper()
	var away *backend.UnavailableError
	if !errors.As(err, &away) || !errors.Is(err, backend.ErrQuarantine) || away.MayHold || away.RetryAfter < d {
		t.Errorf("in quarantine for %s or more: %v", d, err)
	}
}

// quarantineFor makes the server grant nothing for d, as a client does that knew of a longer
// TTL than the others.
func quarantineFor(t testing.TB, s *testserver.RedisServer, d time.Duration) {
	t.Helper()
	now, _ := s.Do("TIME").([]any)
	marker := strings.Fields(fmt.Sprint(s.Do("GET", "{hf0}:m")))
	seconds, err := strconv.ParseInt(fmt.Sprint(now[0]), 10, 64)
	if err != nil || len(marker) < 3 {
		t.Fatalf("time %v, marker %q: %v", now, marker, err)
	}
	marker[2] = strconv.FormatInt(time.Unix(seconds+1, 0).Add(d).UnixMicro(), 10)
	s.Do("SET", "{hf0}:m", strings.Join(marker, " "))
}

// Leases that were queued when the quarantine began keep their places: they are granted in
// their order when it has ended, and their callers learn of it from their next request.
func TestQuarantineOfThoseInQueue(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Minute)
	l := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	first := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	inQueue(t, b, "one", 1)
	second := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	inQueue(t, b, "one", 2)
	began := time.Now()
	const long = 15 * time.Second // what is asked in the quarantine takes less
	quarantineFor(t, s, long)
	_, err := try(t, b, "one", id)
	if held, ok := errors.AsType[*backend.HeldError](err); !ok || len(held.Holders) != 1 {
		t.Errorf("while it is held: %v", err)
	}
	release(t, b, l)
	again := first.AcquireRequest
	again.Wait = false
	_, err = b.Acquire(within(t, patience), again)
	quarantined(t, err, time.Millisecond)
	_, err = try(t, b, "one", id)
	quarantined(t, err, time.Millisecond)
	l = first.granted(t)
	if took := time.Since(began); took < long {
		t.Errorf("granted after %s", took)
	}
	release(t, b, l)
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
	b := open(t, s, redislock.Config{Quarantine: long})
	id := session(t, b, time.Minute)
	_, err := try(t, b, "one", id)
	quarantined(t, err, time.Millisecond)
	// A waiter is refused, too: none joins the queue of a lock that has no holder.
	first := backend.AcquireRequest{Name: "one", Lease: backend.NewLeaseID(), Session: id, Wait: true}
	_, err = b.Acquire(within(t, patience), first)
	quarantined(t, err, time.Millisecond)
	inQueue(t, b, "one", 0)
	quarantined(t, b.Quarantined(t.Context()), time.Millisecond)
	q, _ := errors.AsType[*backend.QuarantineError](err)
	if q == nil || q.Backend != "redis" || q.Parameter != "quarantine=off" || q.Left <= 0 || time.Until(q.Until) > long+2*time.Second ||
		q.Reason != "the server is new or lost its data" {
		t.Errorf("told %+v", q)
	}

	// A client that turned the quarantine off does not keep it.
	off := open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine})
	offID := session(t, off, time.Minute)
	if _, err := try(t, off, "two", offID); err != nil {
		t.Errorf("with the quarantine off: %v", err)
	}
	leasetest.Succeeds(t, func() error {
		_, err := b.Acquire(within(t, patience), first)
		return err
	})
	if took := time.Since(began); took < long-time.Second {
		t.Errorf("granted after %s", took)
	}
	if err := b.Quarantined(t.Context()); err != nil {
		t.Errorf("after the quarantine: %v", err)
	}
	// It has ended for good.
	if _, err := try(t, open(t, s, redislock.Config{Quarantine: long}), "three", id); err != nil {
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
			waits := map[string]time.Duration{"off": redislock.NoQuarantine, "short": time.Millisecond, "long": time.Hour}
			all, ids := make(map[string]*redislock.Backend), make(map[string]backend.SessionID)
			for _, name := range order {
				all[name] = open(t, s, redislock.Config{Quarantine: waits[name]})
				ids[name] = session(t, all[name], time.Minute)
			}
			settled(t, all["short"])
			held := acquire(t, all["off"], backend.AcquireRequest{Name: "one", Session: ids["off"]})
			_, err := try(t, all["long"], "two", ids["long"])
			quarantined(t, err, 50*time.Minute)
			quarantined(t, all["long"].Quarantined(t.Context()), 50*time.Minute)
			// Another client's release would hand the lock over to a waiter.
			_, err = all["long"].Acquire(within(t, patience), backend.AcquireRequest{
				Name: "one", Lease: backend.NewLeaseID(), Session: ids["long"], Wait: true,
			})
			quarantined(t, err, 50*time.Minute)
			inQueue(t, all["long"], "one", 0)
			release(t, all["off"], held)
		})
	}
}

// The longest TTL in use before a loss counts for all clients but those with the quarantine off,
// also where one of these hands a lock over.
func TestQuarantineBesideOff(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, off := open(t, s, cfg), open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine})
	id, offID := session(t, b, time.Hour), session(t, off, time.Hour)
	one := acquire(t, off, backend.AcquireRequest{Name: "one", Session: offID})
	two := acquire(t, off, backend.AcquireRequest{Name: "two", Session: offID})
	keeps := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	inQueue(t, b, "one", 1)
	free := ask(t, off, backend.AcquireRequest{Name: "two", Session: offID})
	inQueue(t, b, "two", 1)
	quarantineFor(t, s, time.Hour)
	release(t, off, one)
	release(t, off, two)
	free.granted(t)
	inQueue(t, off, "one", 1)
	_, err := try(t, off, "one", offID) // it would overtake
	quarantined(t, err, 50*time.Minute)
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
	leasetest.Eventually(t, "it has been up for longer than the quarantine", func() bool { return uptime(t, s) > 3 })
	b := open(t, s, redislock.Config{Quarantine: 2 * time.Second})
	var err error
	leasetest.Eventually(t, "the session lives until the request", func() bool { // a longer one prolongs the quarantine
		_, err = try(t, b, "one", session(t, b, time.Second))
		return !errors.Is(err, backend.ErrSessionLost)
	})
	if err != nil {
		t.Error(err)
	}
}

// The longest TTL in use decides, if it is longer than the configured quarantine.
func TestQuarantineOfTheLongestTTL(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Minute)
	acquire(t, b, backend.AcquireRequest{Name: "timed", Session: id, Timed: true, TTL: time.Hour})
	s.RestartEmpty()
	var err error
	leasetest.Succeeds(t, func() error { // its connections must be made again
		if _, err = try(t, b, "one", id); errors.Is(err, backend.ErrSessionLost) {
			return nil
		}
		return err
	})
	_, err = try(t, b, "one", session(t, b, time.Minute))
	quarantined(t, err, 59*time.Minute)
}

// A holder with a longer TTL than the others know of sends nothing for a long time. When the
// server comes back without its data, the holder reports its TTL as soon as it has
// reconnected.
func TestHoldersTellOfTheirTTLs(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	holder := open(t, s, cfg)
	id := sessionWith(t, holder, time.Hour, func(backend.Loss) {})
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
	b, other := open(t, s, cfg), open(t, s, cfg)
	told := make(chan backend.Loss, 10)
	id := sessionWith(t, b, time.Minute, func(l backend.Loss) { told <- l })
	held := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	a := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	inQueue(t, b, "one", 1)

	s.FlushAll()
	// Any call of any client finds out, and the first Backend is notified by push.
	if _, err := other.Inspect(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	select {
	case l := <-told:
		if l.Session != id || l.Lease != "" || l.Cause != backend.CauseGone {
			t.Errorf("told %+v", l)
		}
	case <-within(t, patience).Done():
		t.Fatal("the holder was not told")
	}
	if err := a.ends(t); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("who waited got %v", err)
	}
	if r, err := b.Renew(t.Context(), backend.RenewRequest{Session: id}); err != nil || !r.SessionLost {
		t.Errorf("renew: %+v %v", r, err)
	}
	fresh := open(t, s, redislock.Config{})
	_, err := try(t, fresh, "one", session(t, fresh, time.Minute))
	quarantined(t, err, 50*time.Second)

	// Tokens grow nevertheless.
	off := open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine})
	last := held.Token
	for range 5 {
		g, err := try(t, off, "one", session(t, off, time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		if g.Token <= last {
			t.Errorf("token %d after %d", g.Token, last)
		}
		last = g.Token
		s.FlushAll()
	}
}

// A Backend that connects after data was lost keeps the quarantine too, whether others that
// knew the data still listen or not: a lease can be held by a process that has no connection.
func TestFlushAllBeforeAStranger(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Redis(t)
	cfg := redislock.Config{Quarantine: 15 * time.Second} // a request that follows takes less
	b := open(t, s, cfg)
	settled(t, b)
	// As in package holdfast, the session has a loss callback, and so the Backend listens.
	if _, err := try(t, b, "one", sessionWith(t, b, time.Minute, func(backend.Loss) {})); err != nil {
		t.Fatal(err)
	}
	s.FlushAll()
	// The server has been up for longer than the quarantine; but there is a listener.
	stranger := open(t, s, cfg)
	id := session(t, stranger, time.Minute)
	_, err := try(t, stranger, "one", id)
	quarantined(t, err, time.Second)
}

// The same without any listener: the server knows that it was emptied. It has been up for
// longer than the quarantine, which would have ended if it were new.
func TestEmptiedBeforeAStranger(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for _, c := range []struct {
		name  string
		args  []string
		empty func(*testserver.RedisServer)
	}{
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
			cfg := redislock.Config{Quarantine: 15 * time.Second} // a request that follows takes less
			b := open(t, s, cfg)
			settled(t, b)
			if _, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "one", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute}); err != nil {
				t.Fatal(err)
			}
			if err := b.Close(); err != nil { // the lease lives on without it
				t.Fatal(err)
			}
			leasetest.Succeeds(t, func() error {
				if all, _ := s.Do("PUBSUB", "CHANNELS", "*").([]any); len(all) > 0 {
					return fmt.Errorf("%v are listened to", all)
				}
				return nil
			})
			c.empty(s)
			next := open(t, s, cfg)
			_, err := try(t, next, "one", session(t, next, time.Minute))
			quarantined(t, err, time.Second)
		})
	}
}

// A replica that has been up for long is promoted before it was sent the marker: it is not a
// new server.
func TestPromotedWithoutAMarker(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	master, replica := testserver.Redis(t), testserver.Redis(t)
	cfg := redislock.Config{Quarantine: 15 * time.Second} // a request that follows takes less
	host, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		t.Fatal(err)
	}
	replica.Do("REPLICAOF", host, port)
	leasetest.Eventually(t, "the replica follows", func() bool {
		return strings.Contains(replica.Info("replication"), "master_link_status:up")
	})
	replica.Do("REPLICAOF", "127.0.0.1", "1") // the link breaks
	b := open(t, master, cfg)
	settled(t, b)
	acquire(t, b, backend.AcquireRequest{Name: "one", Session: session(t, b, time.Minute)})
	leasetest.Eventually(t, "it has been up for longer than the quarantine", func() bool { return uptime(t, replica) > 17 })
	replica.Do("REPLICAOF", "NO", "ONE")
	next := open(t, replica, cfg)
	_, err = try(t, next, "one", session(t, next, time.Minute))
	quarantined(t, err, time.Second)
}

func uptime(t *testing.T, s *testserver.RedisServer) int {
	t.Helper()
	_, rest, _ := strings.Cut(s.Info("server"), "uptime_in_seconds:")
	up, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.Atoi(up)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A restart with data: no quarantine if everything was on disk before it was answered,
// otherwise one, because the last second may be missing.
func TestQuarantineAfterARestart(t *testing.T) {
	t.Parallel()
	for _, fsync := range []string{"always", "everysec"} {
		t.Run(fsync, func(t *testing.T) {
			t.Parallel()
			s, cfg := quick(t, "--appendfsync", fsync)
			b := open(t, s, cfg)
			off := open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine})
			if b.Capabilities().Durable != (fsync == "always") {
				t.Errorf("durable is %t", b.Capabilities().Durable)
			}
			id := session(t, off, time.Hour)
			held := acquire(t, off, backend.AcquireRequest{Name: "one", Session: id})
			if fsync != "always" {
				<-time.After(2 * time.Second) // it is on disk by now
			}
			s.Restart()
			leasetest.Succeeds(t, func() error {
				info, err := b.Inspect(t.Context(), "one")
				if err == nil && (len(info.Holders) != 1 || info.Holders[0].Lease != held.Lease) {
					t.Fatalf("after the restart it is held by %+v", info.Holders)
				}
				return err
			})
			_, err := try(t, b, "two", id)
			if fsync == "always" {
				if err != nil {
					t.Errorf("after a restart that lost nothing: %v", err)
				}
				return
			}
			quarantined(t, err, 50*time.Minute)
			release(t, b, held) // what is held is released and renewed nevertheless
			if r, err := b.Renew(t.Context(), backend.RenewRequest{Session: id}); err != nil || r.SessionLost {
				t.Errorf("renew: %+v %v", r, err)
			}
			_, err = try(t, b, "one", id)
			quarantined(t, err, 50*time.Minute)
		})
	}
}

// A client from before learns that the server does not sync its answers any more: the old
// settings do not decide whether a restart lost something.
func TestQuarantineAfterOtherSettings(t *testing.T) {
	t.Parallel()
	s, _ := quick(t)
	b := open(t, s, redislock.Config{Quarantine: 20 * time.Minute})
	id := session(t, b, time.Hour)
	s.Restart()
	s.Do("CONFIG", "SET", "appendfsync", "everysec")
	leasetest.Succeeds(t, func() error {
		r, err := b.Renew(t.Context(), backend.RenewRequest{Session: id})
		if err == nil && !r.SessionLost {
			t.Error("a session of the generation before is kept")
		}
		return err
	})
	findings, err := b.Examine(t.Context())
	if err != nil || len(findings) != 1 || !strings.Contains(findings[0].Text, "appendfsync everysec") {
		t.Errorf("Examine: %v, %v", findings, err)
	}
	s.Restart()
	leasetest.Succeeds(t, func() error {
		_, err := b.Inspect(t.Context(), "n")
		return err
	})
	_, err = try(t, b, "n", session(t, b, time.Minute))
	quarantined(t, err, 50*time.Minute)
}

// Two prefixes on one server, or two of its databases: each finds out for itself whether the
// restart lost data, although another was faster to ask.
func TestQuarantineOfEveryPrefix(t *testing.T) {
	t.Parallel()
	inBothForms(t, quarantineOfEveryPrefix)
}

func quarantineOfEveryPrefix(t *testing.T, args ...string) {
	t.Helper()
	s := testserver.Redis(t, append(args, "--appendonly", "no", "--save", "")...)
	url := func(db int) string { return fmt.Sprintf("redis://%s/%d", s.Addr(), db) }
	connect := func(db int, prefix string) *redislock.Backend {
		b, err := redislock.Open(t.Context(), url(db), redislock.Config{Quarantine: time.Millisecond, Prefix: prefix, RequestTimeout: answered})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		settled(t, b)
		return b
	}
	all := []*redislock.Backend{connect(0, "a"), connect(0, "b"), connect(1, "a")}
	ids := make([]backend.SessionID, len(all))
	for i, b := range all {
		ids[i] = session(t, b, time.Hour)
	}
	s.Do("SAVE")
	for i, b := range all {
		acquire(t, b, backend.AcquireRequest{Name: "one", Session: ids[i]})
	}
	s.Restart() // as of the SAVE: the leases are forgotten, the sessions are not
	for i, b := range all {
		leasetest.Succeeds(t, func() error { // its connections must be made again
			_, err := try(t, b, "one", ids[i])
			if err == nil {
				t.Fatalf("partition %d: granted, though it is held", i)
			}
			if errors.Is(err, backend.ErrQuarantine) {
				return nil
			}
			return err
		})
	}
}
