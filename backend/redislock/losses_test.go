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

// A replica takes over behind one address, and both have everything on disk: what had not
// arrived yet is missing nevertheless.
func TestQuarantineAfterATakeOver(t *testing.T) {
	t.Parallel()
	s, replica := withReplica(t)
	cfg := redislock.Config{Quarantine: time.Millisecond}
	b := open(t, s, cfg)
	settled(t, b)
	if !b.Capabilities().Durable {
		t.Fatal("it is not durable")
	}
	id := session(t, b, time.Hour)
	leasetest.Succeeds(t, func() error {
		if replica.Do("EXISTS", "{hf0}:s:"+string(id)) != int64(1) {
			return errors.New("it is behind")
		}
		return nil
	})
	replica.Do("REPLICAOF", "NO", "ONE")
	acquire(t, b, backend.AcquireRequest{Name: "one", Session: id}) // no other client has it
	next := open(t, replica, cfg)
	_, err := try(t, next, "one", id)
	quarantined(t, err, 50*time.Minute)
}

// A replica takes over and hands back, and got no request in between: what it had not
// received is missing where it was granted.
func TestQuarantineAfterATakeOverAndBack(t *testing.T) {
	t.Parallel()
	inBothForms(t, takeOverAndBack)
}

func takeOverAndBack(t *testing.T, args ...string) {
	t.Helper()
	s, replica := withReplica(t, args...)
	cfg := redislock.Config{Quarantine: time.Millisecond}
	b, off := open(t, s, cfg), open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine})
	settled(t, b)
	follow := func(s, master *testserver.RedisServer) {
		host, port, _ := strings.Cut(master.Addr(), ":")
		s.Do("REPLICAOF", host, port)
		follows(t, s)
	}
	for round := range 2 {
		name, id := fmt.Sprint("lock", round), session(t, off, time.Hour)
		leasetest.Succeeds(t, func() error {
			if replica.Do("EXISTS", "{hf0}:s:"+string(id)) != int64(1) {
				return errors.New("it is behind")
			}
			return nil
		})
		replica.Do("REPLICAOF", "NO", "ONE")
		acquire(t, off, backend.AcquireRequest{Name: name, Session: id})
		follow(s, replica)
		s.Do("REPLICAOF", "NO", "ONE")
		if rec := thin(s, name); rec != "" {
			t.Fatalf("the grant is there (%q): nothing was lost, and nothing is tested", rec)
		}
		_, err := try(t, b, name, session(t, b, time.Hour))
		quarantined(t, err, 50*time.Minute)
		follow(replica, s)
	}
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
		acquire(t, other, backend.AcquireRequest{Name: "one", Session: session(t, other, time.Hour)})
		replica.Kill()
		s.Do("REPLICAOF", "NO", "ONE")
		_, err := try(t, b, "one", session(t, b, time.Hour))
		quarantined(t, err, 0)
	})
}

// followsPartly has the replica take over, and its former master follow it. It returns whether that
// was a partial resynchronisation.
func followsPartly(t *testing.T, b *redislock.Backend, s, replica *testserver.RedisServer) bool {
	t.Helper()
	s.Do("CONFIG", "SET", "repl-ping-replica-period", "3600") // pings count as writes
	settled(t, b)
	leasetest.Succeeds(t, func() error { // until it has all that there is
		info := s.Info("replication") // WAIT would only wait for the writes of its own connection
		_, rest, _ := strings.Cut(info, "master_repl_offset:")
		offset, _, _ := strings.Cut(rest, "\r")
		if !strings.Contains(info, "offset="+offset+",") {
			return fmt.Errorf("it is behind:\n%s", info)
		}
		return nil
	})
	replica.Do("REPLICAOF", "NO", "ONE")
	host, port, _ := strings.Cut(replica.Addr(), ":")
	s.Do("REPLICAOF", host, port)
	follows(t, s)
	return strings.Contains(replica.Info("stats"), "sync_partial_ok:1")
}

// A break, and the grant after it, are lost in a restart: the lease that was broken is there
// again, and keeps others away, but its client can neither renew it nor be granted it again.
func TestRestoredLeaseIsNotRenewed(t *testing.T) {
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		s, cfg := quick(t, append(args, "--appendonly", "no")...)
		b, other := open(t, s, cfg), open(t, s, cfg)
		old := acquire(t, b, backend.AcquireRequest{Name: "one", Timed: true, TTL: time.Minute})
		s.Do("SAVE") // what is on the disk
		if _, err := other.Break(t.Context(), backend.BreakRequest{Name: "one"}); err != nil {
			t.Fatal(err)
		}
		acquire(t, other, backend.AcquireRequest{Name: "one", Timed: true, TTL: time.Minute})
		s.Restart()
		renew := func(l lease) error {
			var err error
			leasetest.Succeeds(t, func() error { // once it is connected again
				r, no := b.Renew(t.Context(), backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: l.Name, Lease: l.Lease, TTL: time.Minute}}})
				if no == nil {
					err = r.Leases[0].Err
				}
				return no
			})
			return err
		}
		if err := renew(old); !errors.Is(err, backend.ErrLost) {
			t.Errorf("renewal of the broken lease: %v; want ErrLost", err)
		}
		if _, err := b.Acquire(t.Context(), old.AcquireRequest); !errors.Is(err, backend.ErrLost) {
			t.Errorf("the same request again: %v; want ErrLost", err)
		}
		if info, err := other.Inspect(t.Context(), "one"); err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != old.Lease {
			t.Errorf("%+v, %v; want the broken lease until it ends", info, err)
		}
		// What is granted from then on is renewed.
		off := open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine})
		fresh := acquire(t, off, backend.AcquireRequest{Name: "two", Timed: true, TTL: time.Minute})
		if err := renew(fresh); err != nil {
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
	id := session(t, b, time.Minute)
	l := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	const ttl = time.Hour
	w := ask(t, b, backend.AcquireRequest{Name: "one", Session: id, Timed: true, TTL: ttl})
	inQueue(t, b, "one", 1)
	longest := func() string { return strings.Fields(fmt.Sprint(s.Do("GET", "{hf0}:m")))[3] }
	marker := strings.Fields(fmt.Sprint(s.Do("GET", "{hf0}:m")))
	marker[3] = "60000"
	s.Do("SET", "{hf0}:m", strings.Join(marker, " "))
	release(t, b, l)
	w.granted(t)
	if got := longest(); got != strconv.FormatInt(ttl.Milliseconds(), 10) {
		t.Errorf("the longest TTL in use is %s ms, as the marker has it; a lease has %s", got, ttl)
	}
}

// AOF is turned off at run time, and the next run reads the one that ended there: a client that
// was told so reports it, although the marker in that file says that nothing is lost.
func TestQuarantineAfterAnOldAOF(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	s.Do("CONFIG", "SET", "appendonly", "no")
	b := open(t, s, cfg)
	l := acquire(t, b, backend.AcquireRequest{Name: "one", Timed: true, TTL: time.Hour})
	s.Restart()
	if n := s.Do("ZCARD", "{hf0}:t"); n != int64(0) {
		t.Fatalf("the grant is there (%v): nothing was lost, and nothing is tested", n)
	}
	// Another client is first. It knows nothing, as if it were new.
	_, _ = try(t, open(t, s, cfg), "two", session(t, open(t, s, cfg), time.Minute))
	leasetest.Succeeds(t, func() error {
		_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "one", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute})
		if err == nil {
			t.Fatalf("granted, and the first has it until %s", l.Asked.Add(l.Left))
		}
		if errors.Is(err, backend.ErrQuarantine) {
			return nil
		}
		return err
	})
}

// A server process that was not greeted, or whose data is of another generation than the client knows,
// grants nothing, also to one that asks alone.
func TestOneAloneIsMet(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, _ := quick(t, "--appendfsync", "always")
	b := open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine})
	id := session(t, b, time.Hour)
	ask := func(want any) {
		t.Helper()
		call, err := b.CallFor(leasetest.Ask(string(backend.NewLeaseID()), id))
		if err != nil {
			t.Fatal(err)
		}
		answer := s.Do(call...)
		if token, ok := answer.(int64); ok && want == "a token" && token > 0 {
			return
		}
		if words, ok := answer.([]any); !ok || len(words) == 0 || words[0] != want {
			t.Errorf("the answer is %v, want %v", answer, want)
		}
	}
	ask("a token")
	marker, _ := s.Do("GET", "{hf0}:m").(string)
	fields := strings.Fields(marker)
	fields[len(fields)-3] = string(backend.NewLeaseID()) + ".r" // what another client's hello does after a loss
	s.Do("SET", "{hf0}:m", strings.Join(fields, " "))
	ask("MARKER")
	s.Do("SET", "{hf0}:m", marker)
	ask("a token")
	s.Process().Stop() // the client does not greet the next process
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	s.Restart()
	ask("MARKER")
}

// A call of several requests of which a later one is refused says that it may have worked. The losses
// that the first one returned were not delivered, and are returned again.
func TestRefusedAfterTheFirstPart(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, other := open(t, s, cfg), open(t, s, cfg)
	allow := func(sign string) { s.Do("ACL", "SETUSER", "default", sign+"fcall", sign+"eval", sign+"evalsha") }
	refused, parts := "", 0
	b.Intercept(func(op string, do func()) {
		if op == refused {
			if parts++; parts == 2 {
				allow("-")
			}
		}
		do()
	})
	partly := func(op string, f func() error) {
		t.Helper()
		refused, parts = op, 0
		err := f()
		allow("+")
		refused = ""
		if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold || !errors.Is(err, backend.ErrRefused) {
			t.Errorf("%s: %v after %d parts", op, err, parts)
		}
	}
	id := session(t, b, time.Hour)
	gone := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	if _, err := other.Break(within(t, patience), backend.BreakRequest{Name: "one"}); err != nil {
		t.Fatal(err)
	}
	renewal := backend.RenewRequest{Session: id, Leases: make([]backend.TimedRenewal, 1001)}
	for i := range renewal.Leases {
		renewal.Leases[i] = backend.TimedRenewal{Name: "none", Lease: backend.NewLeaseID()}
	}
	partly("renew", func() error {
		_, err := b.Renew(within(t, patience), renewal)
		return err
	})
	if r, err := b.Renew(within(t, patience), backend.RenewRequest{Session: id}); err != nil || len(r.Lost) != 1 || r.Lost[0].Lease != gone.Lease {
		t.Errorf("the next renewal: %+v, %v", r, err)
	}
	takeMany(t, b, id, 5001)
	partly("session.end", func() error { return b.EndSession(within(t, patience), id) })
	if err := b.EndSession(within(t, patience), id); err != nil {
		t.Error(err)
	}
}
