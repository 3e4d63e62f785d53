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

// A request that is refused half-way leaves nothing half-done.

// A quarantine has ended, some leases are queued, and the memory is full. The next request is
// refused, and has granted to the first in the queue on the way: that is on record, so that
// no other lease is granted beside it.
func TestRefusedAfterTheQueueMoved(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	cfg.RequestTimeout = patience
	b, other := open(t, s, cfg), on(t, s, cfg)
	checks := make(chan struct{})
	b.Intercept(func(op string, do func()) {
		if op == "check" {
			<-checks
		}
		do()
	})
	queued := withSession(t, b)
	before := other.take("one")
	first, second := queued.asks("one", 1), queued.asks("one", 2)
	quarantineFor(t, s, 12*time.Second)
	other.give(before)
	s.Do("CONFIG", "SET", "maxmemory", "1mb")
	leasetest.Succeeds(t, func() error {
		err := other.try("one", waits)
		if errors.Is(err, backend.ErrQuarantine) {
			return err
		}
		if err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Fatalf("with the memory full: %v", err)
		}
		if n := s.Do("HLEN", "{hf0}:w:one"); n != int64(1) {
			return fmt.Errorf("%v are in the queue", n)
		}
		return nil
	})
	close(checks) // the waiters check again
	l := first.granted(t)
	for range 3 {
		other.exec("check", string(queued.id), "one", string(second.Lease))
	}
	other.heldBy("one", 1, l.Lease)
	queued.give(l)
	queued.give(second.granted(t))
}

// exec makes the server run one operation.
func (c *client) exec(op ...string) []redislock.Reply {
	c.t.Helper()
	answers, err := c.Exec(c.t.Context(), true, [][]string{op})
	if err != nil {
		c.t.Fatal(err)
	}
	return answers[0]
}

// withReplica starts a server, and a replica of it.
func withReplica(t *testing.T, args ...string) (*testserver.RedisServer, *testserver.RedisServer) {
	t.Helper()
	s := testserver.Redis(t, args...)
	return s, replicaOf(t, s, args...)
}

func replicaOf(t *testing.T, s *testserver.RedisServer, args ...string) *testserver.RedisServer {
	t.Helper()
	s.Do("CONFIG", "SET", "repl-diskless-sync-delay", "0")
	replica := testserver.Redis(t, append([]string{"--repl-diskless-sync-delay", "0"}, args...)...)
	follow(t, replica, s)
	return replica
}

func follow(t *testing.T, s, master *testserver.RedisServer) {
	t.Helper()
	host, port, _ := strings.Cut(master.Addr(), ":")
	s.Do("REPLICAOF", host, port)
	leasetest.Eventually(t, "it follows", func() bool { return strings.Contains(s.Info("replication"), "master_link_status:up") })
}

// With the memory full nothing is acquired, but what is held, thin or not, is kept, broken, handed over and released.
func TestMemoryFull(t *testing.T) {
	t.Parallel()
	for form, args := range map[string][]string{"function": nil, "script": scriptsOnly(), "replicas": nil} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			s, cfg := quick(t, args...)
			cfg.RequestTimeout = patience
			if form == "replicas" {
				replicaOf(t, s)
				cfg.Replicas = 1
			}
			b, other := on(t, s, cfg), on(t, s, cfg)
			held := make(map[string]lease)
			for _, name := range []string{"released", "broken", "inflated", "kept", "again", "one"} {
				held[name] = b.take(name)
			}
			inflate(t, b.Backend, "inflated")
			waits, long := b.asks("one", 1), b.take("timed", timed(time.Minute))
			s.Do("CONFIG", "SET", "maxmemory", "1mb")
			b.give(held["released"])
			for _, name := range []string{"released", "new"} {
				err := other.try(name)
				if away(t, "acquire "+name, err, false); !strings.Contains(fmt.Sprint(err), "OOM") {
					t.Errorf("acquire %q: %v", name, err)
				}
			}
			if err := other.try("kept"); err == nil || errors.Is(err, backend.ErrLost) {
				t.Errorf("acquire what is held: %v", err)
			}
			b.renews()
			if err := b.Release(t.Context(), backend.ReleaseRequest{
				Name: "never", Lease: backend.NewLeaseID(), Session: b.id, Abandon: true,
			}); err != nil {
				t.Errorf("abandon: %v", err)
			}
			if err := b.OpenSession(t.Context(), backend.SessionRequest{ID: b.id, TTL: time.Hour}); err != nil {
				t.Errorf("confirm the session: %v", err)
			}
			r, err := b.Renew(t.Context(), backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: "timed", Lease: long.Lease, TTL: time.Hour}}})
			if err != nil || r.Leases[0].Err != nil || r.Leases[0].Left <= time.Minute {
				t.Errorf("renew: %+v %v", r, err)
			}
			for _, name := range []string{"broken", "inflated"} {
				if r := other.breaks(name); len(r.Broken) != 1 {
					t.Errorf("break %q: %+v", name, r)
				}
			}
			b.give(held["one"])
			b.give(waits.granted(t))
			b.give(held["kept"])
			b.give(long)
			other.give(held["again"]) // by a client that does not know that it is thin
			if err := b.EndSession(t.Context(), b.id); err != nil {
				t.Errorf("end session: %v", err)
			}
		})
	}
}

// A request that was executed, and then not confirmed by the replicas, whatever the reason,
// is not executed again, and may have worked.
func TestRefusedAfterItWasDone(t *testing.T) {
	t.Parallel()
	s, _ := withReplica(t)
	cfg := redislock.Config{Quarantine: time.Millisecond, Replicas: 1, RequestTimeout: patience}
	s.Do("ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all")
	b := openAs(t, s, cfg, "locks")
	settled(t, b)
	cfg.Replicas = 0
	c, other := withSession(t, b), on(t, s, cfg)
	other.take("one")
	next := other.asks("one", 1)
	// The key that is written before WAIT is forbidden, and nothing else.
	s.Do("ACL", "SETUSER", "locks", "resetkeys", "~{hf0}:[^k]*")
	err := c.try("two")
	away(t, "acquire", err, true)
	is(t, "acquire", err, redislock.ErrReplicas)
	_, err = c.Break(t.Context(), backend.BreakRequest{Name: "one"})
	is(t, "break", err, redislock.ErrReplicas)
	other.heldBy("one", 0, next.Lease) // it was not taken from the next one, too
}

// A server that became a replica refuses a batch as a whole, as a function and as a script: then another server is
// located. It is known that nothing was changed.
func TestReplicaRefusesTheBatch(t *testing.T) {
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		s, cfg := quick(t, args...)
		b := on(t, s, cfg)
		s.Do("REPLICAOF", "127.0.0.1", strconv.Itoa(testserver.FreePort(t)))
		for _, mode := range []string{"x", "s"} {
			_, err := b.Exec(t.Context(), true, [][]string{
				{"acquire", string(b.id), "0", "0", "0", mode, "1", "", "", "", "one", string(backend.NewLeaseID())},
			})
			if err == nil || !strings.HasPrefix(err.Error(), "redis: READONLY") {
				t.Errorf("mode %s: %v; want READONLY of the whole request", mode, err)
			}
		}
		away(t, "acquire", b.try("one"), false)
	})
}

// The key that tells the short way that a session lives is not what it lives by.
func TestSessionWithoutItsKey(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := on(t, s, cfg)
	held := b.take("one")
	s.Do("DEL", "{hf0}:u:"+string(b.id))
	b.give(b.take("two"))
	b.renews()
	b.heldBy("one", 0, held.Lease)
	b.give(held)
}

// An operator removed sessions from the records. A break frees the locks that they held, and their places in a queue
// are dropped.
func TestSessionsRemovedByHand(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := on(t, s, cfg)
	on(t, s, cfg).take("one")
	a := b.asks("one", 1)
	s.Do("DEL", "{hf0}:x")
	a.cancel(nil)
	_ = a.ends(t)
	again := a.AcquireRequest
	again.Session = session(t, b.Backend, time.Hour)
	a = ask(t, b.Backend, again)
	leasetest.Eventually(t, "it is in the queue", func() bool { return b.KnownInQueue(a.Lease) })
	b.breaks("one")
	b.give(a.granted(t))

	b, unknown := on(t, s, cfg), session(t, b.Backend, time.Hour)
	held := b.take("two")
	b.exec("acquire", string(unknown), "0", "0", "1", "x", "1", "nobody", "", "", "two", string(backend.NewLeaseID()))
	s.Do("HDEL", "{hf0}:l:two", string(held.Lease))
	s.Do("EVAL", "redis.call('HSET', KEYS[1], '@', struct.pack('<I4I1I4I4I4I4d', 0, 0, 0, 0, 0, 1, 1))", "1", "{hf0}:l:two")
	s.Do("ZREM", "{hf0}:x", "s:"+string(unknown))
	s.Do("DEL", "{hf0}:u:"+string(unknown))
	l := b.take("two")
	page, err := b.List(t.Context(), backend.ListRequest{})
	if err != nil || len(page.Locks) != 1 || len(page.Locks[0].Holders) != 1 {
		t.Errorf("%+v, %v; want the lock and its holder", page.Locks, err)
	}
	b.give(l)
}

// A call of several requests of which a later one is refused says that it may have worked. The losses
// that the first one returned were not delivered, and are returned again.
func TestRefusedAfterTheFirstPart(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	opened, other := open(t, s, cfg), on(t, s, cfg)
	allow := func(sign string) { s.Do("ACL", "SETUSER", "default", sign+"fcall", sign+"eval", sign+"evalsha") }
	refused, parts := "", 0
	opened.Intercept(func(op string, do func()) {
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
		away(t, op, err, true)
		is(t, op, err, backend.ErrRefused)
	}
	b := withSession(t, opened)
	gone := b.take("one")
	other.breaks("one")
	renewal := backend.RenewRequest{Session: b.id, Leases: make([]backend.TimedRenewal, 1001)}
	for i := range renewal.Leases {
		renewal.Leases[i] = backend.TimedRenewal{Name: "none", Lease: backend.NewLeaseID()}
	}
	partly("renew", func() error { _, err := b.Renew(within(t, patience), renewal); return err })
	if r, err := b.Renew(within(t, patience), backend.RenewRequest{Session: b.id}); err != nil || len(r.Lost) != 1 || r.Lost[0].Lease != gone.Lease {
		t.Errorf("the next renewal: %+v, %v", r, err)
	}
	takeMany(t, opened, b.id, 5001)
	partly("session.end", func() error { return b.EndSession(within(t, patience), b.id) })
	if err := b.EndSession(within(t, patience), b.id); err != nil {
		t.Error(err)
	}
}
