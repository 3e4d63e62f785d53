package redislock_test

import (
	"context"
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

// A restart with data: no quarantine if everything was on disk before it was answered,
// otherwise one, because the last second may be missing.
func TestQuarantineAfterARestart(t *testing.T) {
	t.Parallel()
	for setting, durable := range map[string]bool{"appendfsync always": true, "appendfsync everysec": false, "no-appendfsync-on-rewrite yes": false} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			s, cfg := quick(t, strings.Fields("--"+setting)...)
			opened, off := open(t, s, cfg), on(t, s, redislock.Config{Quarantine: redislock.NoQuarantine})
			if opened.Capabilities().Durable != durable {
				t.Errorf("durable is %t", opened.Capabilities().Durable)
			}
			b := &client{opened, t, off.id}
			held := off.take("one")
			if !durable {
				<-time.After(2 * time.Second) // it is on disk by now
			}
			s.Restart()
			answers(t, opened)
			b.heldBy("one", 0, held.Lease)
			err := b.try("two")
			if durable {
				if err != nil {
					t.Errorf("after a restart that lost nothing: %v", err)
				}
				return
			}
			quarantined(t, err, 50*time.Minute)
			b.give(held) // what is held is released and renewed nevertheless
			b.renews()
			quarantined(t, b.try("one"), 50*time.Minute)
		})
	}
}

// answers waits until the Backend has connected again after a restart.
func answers(t *testing.T, b *redislock.Backend) {
	t.Helper()
	leasetest.Succeeds(t, func() error { _, err := b.Inspect(t.Context(), "n"); return err })
}

// A client from before learns that the server does not sync its answers any more: the old
// settings do not decide whether a restart lost something.
func TestQuarantineAfterOtherSettings(t *testing.T) {
	t.Parallel()
	s, _ := quick(t)
	b := on(t, s, redislock.Config{Quarantine: 20 * time.Minute})
	s.Restart()
	s.Do("CONFIG", "SET", "appendfsync", "everysec")
	answers(t, b.Backend)
	if r, err := b.Renew(t.Context(), backend.RenewRequest{Session: b.id}); err != nil || !r.SessionLost {
		t.Errorf("renew a session of the generation before: %+v, %v", r, err)
	}
	findings, err := b.Examine(t.Context())
	if err != nil || len(findings) != 1 || !strings.Contains(findings[0].Text, "appendfsync everysec") {
		t.Errorf("Examine: %v, %v", findings, err)
	}
	s.Restart()
	answers(t, b.Backend)
	quarantined(t, withSession(t, b.Backend).try("n"), 50*time.Minute)
}

// Two prefixes on one server, or two of its databases: each finds out for itself whether the
// restart lost data, although another was faster to ask.
func TestQuarantineOfEveryPrefix(t *testing.T) {
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		s := testserver.Redis(t, append(args, "--appendonly", "no", "--save", "")...)
		var all []*client
		for _, at := range []string{"/0?prefix=a", "/0?prefix=b", "/1?prefix=a"} {
			b := openURL(t, "redis://"+s.Addr()+at+"&quarantine=1ms&timeout="+answered.String())
			settled(t, b)
			all = append(all, withSession(t, b))
		}
		s.Do("SAVE")
		for _, b := range all {
			b.take("one")
		}
		s.Restart() // as of the SAVE: the leases are forgotten, the sessions are not
		for i, b := range all {
			leasetest.Succeeds(t, func() error { return isQuarantined(t, b.try("one"), fmt.Sprint("partition ", i)) }) // its connections must be made again
		}
	})
}

// isQuarantined is nil for a quarantine, and fails the test for a grant.
func isQuarantined(t *testing.T, err error, what string) error {
	t.Helper()
	if err == nil {
		t.Fatalf("%s: granted, though it is held", what)
	}
	if errors.Is(err, backend.ErrQuarantine) {
		return nil
	}
	return err
}

// A replica that has been up for long is promoted before it was sent the marker: it is not a
// new server.
func TestPromotedWithoutAMarker(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	master, replica := withReplica(t)
	cfg := redislock.Config{Quarantine: 15 * time.Second} // a request that follows takes less
	replica.Do("REPLICAOF", "127.0.0.1", "1")             // the link breaks
	b := open(t, master, cfg)
	settled(t, b)
	acquire(t, b, backend.AcquireRequest{Name: "one", Timed: true, TTL: time.Minute})
	isUp(t, replica, 17)
	replica.Do("REPLICAOF", "NO", "ONE")
	next := open(t, replica, cfg)
	quarantined(t, mortal(t, next, time.Minute).try("one"), time.Second)
}

// knows waits until the replica has the session.
func knows(t *testing.T, replica *testserver.RedisServer, id backend.SessionID) {
	t.Helper()
	leasetest.Eventually(t, "the replica has all", func() bool { return replica.Do("EXISTS", "{hf0}:s:"+string(id)) == int64(1) })
}

// A replica takes over behind one address, and both have everything on disk: what had not
// arrived yet is missing nevertheless.
func TestQuarantineAfterATakeOver(t *testing.T) {
	t.Parallel()
	s, replica := withReplica(t)
	cfg := redislock.Config{Quarantine: time.Millisecond}
	opened := open(t, s, cfg)
	settled(t, opened)
	b := withSession(t, opened)
	if !b.Capabilities().Durable {
		t.Fatal("it is not durable")
	}
	knows(t, replica, b.id)
	replica.Do("REPLICAOF", "NO", "ONE")
	b.take("one") // no other client has it
	quarantined(t, (&client{open(t, replica, cfg), t, b.id}).try("one"), 50*time.Minute)
}

// A replica takes over and hands back, and got no request in between: what it had not
// received is missing where it was granted.
func TestQuarantineAfterATakeOverAndBack(t *testing.T) {
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		s, replica := withReplica(t, args...)
		b, off := open(t, s, redislock.Config{Quarantine: time.Millisecond}), open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine})
		settled(t, b)
		for round := range 2 {
			name, holder := fmt.Sprint("lock", round), withSession(t, off)
			knows(t, replica, holder.id)
			replica.Do("REPLICAOF", "NO", "ONE")
			holder.take(name)
			follow(t, s, replica)
			s.Do("REPLICAOF", "NO", "ONE")
			if rec := thin(s, name); rec != "" {
				t.Fatalf("the grant is there (%q): nothing was lost, and nothing is tested", rec)
			}
			quarantined(t, withSession(t, b).try(name), 50*time.Minute)
			follow(t, replica, s)
		}
	})
}

// A replica takes over, and its former master follows it with a partial resynchronisation. Then the
// link breaks, the new master grants, and is lost. The first one is master again: nothing in its
// data shows that it lacks a grant.
func TestQuarantineAfterATakeOverThatWasLost(t *testing.T) {
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		cfg := redislock.Config{Quarantine: time.Millisecond}
		var s, replica *testserver.RedisServer
		var b *redislock.Backend
		// Whatever the master writes after the comparison makes it a full one: then all is done again.
		const tries = 5
		for n := 1; ; n++ {
			s, replica = withReplica(t, args...)
			b = open(t, s, cfg)
			if followsPartly(t, b, s, replica) {
				break
			}
			if n == tries {
				t.Fatal("it was a full resynchronisation: nothing is tested")
			}
		}
		s.Do("REPLICAOF", "127.0.0.1", "1") // the link breaks
		other := open(t, replica, cfg)
		settled(t, other)
		withSession(t, other).take("one")
		replica.Kill()
		s.Do("REPLICAOF", "NO", "ONE")
		quarantined(t, withSession(t, b).try("one"), 0)
	})
}

// followsPartly has the replica take over, and its former master follow it. It returns whether that
// was a partial resynchronisation.
func followsPartly(t *testing.T, b *redislock.Backend, s, replica *testserver.RedisServer) bool {
	t.Helper()
	s.Do("CONFIG", "SET", "repl-ping-replica-period", "3600") // pings count as writes
	settled(t, b)
	leasetest.Eventually(t, "it has all that there is", func() bool {
		info := s.Info("replication") // WAIT would only wait for the writes of its own connection
		_, rest, _ := strings.Cut(info, "master_repl_offset:")
		offset, _, _ := strings.Cut(rest, "\r")
		return strings.Contains(info, "offset="+offset+",")
	})
	replica.Do("REPLICAOF", "NO", "ONE")
	follow(t, s, replica)
	return strings.Contains(replica.Info("stats"), "sync_partial_ok:1")
}

// A break, and the grant after it, are lost in a restart: the lease that was broken is there
// again, and keeps others away, but its client can neither renew it nor be granted it again.
func TestRestoredLeaseIsNotRenewed(t *testing.T) {
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		s, cfg := quick(t, append(args, "--appendonly", "no")...)
		b, other := on(t, s, cfg), on(t, s, cfg)
		minute := alone(time.Minute)
		old := b.take("one", minute)
		s.Do("SAVE") // what is on the disk
		other.breaks("one")
		other.take("one", minute)
		s.Restart()
		renew := func(l lease) error {
			r, err := leasetest.Insist(t, func(ctx context.Context) (backend.RenewResult, error) { // once it is connected again
				return b.Renew(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: l.Name, Lease: l.Lease, TTL: time.Minute}}})
			})
			if err != nil {
				t.Fatal(err)
			}
			return r.Leases[0].Err
		}
		is(t, "renewal of the broken lease", renew(old), backend.ErrLost)
		_, err := b.Acquire(t.Context(), old.AcquireRequest)
		is(t, "the same request again", err, backend.ErrLost)
		other.heldBy("one", 0, old.Lease) // until it ends
		// What is granted from then on is renewed.
		off := on(t, s, redislock.Config{Quarantine: redislock.NoQuarantine})
		if err := renew(off.take("two", minute)); err != nil {
			t.Errorf("renewal of a lease from after the restart: %v", err)
		}
	})
}

// A grant is lost in a restart, and the session that has it is not. Its client learns of that without pushes, too: another
// one is granted the lock when the quarantine has ended, however often the session is renewed.
func TestRestoredSessionIsNotRenewed(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t, "--appendonly", "no")
	b, other := open(t, s, cfg), open(t, s, cfg)
	id := session(t, b, time.Minute)
	s.Do("SAVE") // what is on the disk
	acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	s.Restart()
	for range 2 {
		leasetest.Succeeds(t, func() error { // once it is connected again
			r, err := b.Renew(t.Context(), backend.RenewRequest{Session: id})
			if err == nil && !r.SessionLost {
				info, err := other.Inspect(t.Context(), "one")
				t.Errorf("the session is renewed, and the lock is held by %+v, %v", info.Holders, err)
			}
			return err
		})
	}
	if err := b.OpenSession(t.Context(), backend.SessionRequest{ID: id, TTL: time.Minute}); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("open it again: %v; want ErrSessionLost", err)
	}
}

// The longest TTL is forgotten while a timed lease waits. When it is granted, the marker has
// it again: after a loss of data nothing is granted before that lease has ended.
func TestLongestTTLOfAWaiter(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	c := mortal(t, b, time.Minute)
	l, w := c.take("one"), c.asks("one", 1, timed(time.Hour))
	const longest = 3 // the field of the marker
	mark(s, longest, "60000")
	c.give(l)
	w.granted(t)
	if got := marker(s)[longest]; got != strconv.FormatInt(time.Hour.Milliseconds(), 10) {
		t.Errorf("the longest TTL in use is %s ms, as the marker has it; a lease has an hour", got)
	}
}

// AOF is turned off at run time, and the next run reads the one that ended there: a client that
// was told so reports it, although the marker in that file says that nothing is lost.
func TestQuarantineAfterAnOldAOF(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	s.Do("CONFIG", "SET", "appendonly", "no")
	b := &client{Backend: open(t, s, cfg), t: t}
	b.take("one", timed(time.Hour))
	s.Restart()
	if n := s.Do("ZCARD", "{hf0}:t"); n != int64(0) {
		t.Fatalf("the grant is there (%v): nothing was lost, and nothing is tested", n)
	}
	// Another client is first. It knows nothing, as if it were new.
	_ = mortal(t, open(t, s, cfg), time.Minute).try("two")
	leasetest.Succeeds(t, func() error {
		return isQuarantined(t, b.try("one", timed(time.Minute)), "the first has it for an hour")
	})
}

// A server process that was not greeted, or whose data is of another generation than the client knows,
// grants nothing, also to one that asks alone.
func TestOneAloneIsMet(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, _ := quick(t, "--appendfsync", "always")
	b := on(t, s, redislock.Config{Quarantine: redislock.NoQuarantine})
	ask := func(want string) {
		t.Helper()
		call, err := b.CallFor(b.req(string(backend.NewLeaseID())))
		if err != nil {
			t.Fatal(err)
		}
		answer := s.Do(call...)
		if words, ok := answer.([]any); ok && len(words) > 0 {
			answer = words[0]
		} else if text, ok := answer.(string); ok && strings.Contains(text, "\n") {
			answer = "a token"
		}
		if answer != want {
			t.Errorf("the answer is %v, want %v", answer, want)
		}
	}
	ask("a token")
	before := s.Do("GET", "{hf0}:m").(string)
	mark(s, len(marker(s))-3, string(backend.NewLeaseID())+".r") // what another client's hello does after a loss
	ask("MARKER")
	s.Do("SET", "{hf0}:m", before)
	ask("a token")
	s.Process().Stop() // the client does not greet the next process
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	s.Restart()
	ask("MARKER")
}
