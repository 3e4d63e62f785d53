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
	b, other := open(t, s, cfg), open(t, s, cfg)
	checks := make(chan struct{})
	goOn := func() { close(checks) }
	b.Intercept(func(op string, do func()) {
		if op == "check" {
			<-checks
		}
		do()
	})
	id, otherID := session(t, b, time.Hour), session(t, other, time.Hour)
	before := acquire(t, other, backend.AcquireRequest{Name: "one", Session: otherID})
	first := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	inQueue(t, other, "one", 1)
	second := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	inQueue(t, other, "one", 2)
	quarantineFor(t, s, 12*time.Second)
	release(t, other, before)
	s.Do("CONFIG", "SET", "maxmemory", "1mb")
	leasetest.Succeeds(t, func() error {
		_, err := other.Acquire(t.Context(), backend.AcquireRequest{Name: "one", Lease: backend.NewLeaseID(), Session: otherID, Wait: true})
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
	goOn() // the waiters check again
	l := first.granted(t)
	for range 3 {
		if _, err := other.Exec(t.Context(), true, [][]string{{"check", string(id), "one", string(second.Lease)}}); err != nil {
			t.Fatal(err)
		}
	}
	info, err := other.Inspect(t.Context(), "one")
	if err != nil || len(info.Holders) != 1 || len(info.Waiters) != 1 {
		t.Fatalf("%+v, %v", info, err)
	}
	release(t, b, l)
	release(t, b, second.granted(t))
}

// withReplica starts a server, and a replica of it.
func withReplica(t *testing.T, args ...string) (*testserver.RedisServer, *testserver.RedisServer) {
	t.Helper()
	s := testserver.Redis(t, args...)
	s.Do("CONFIG", "SET", "repl-diskless-sync-delay", "0")
	host, port, _ := strings.Cut(s.Addr(), ":")
	replica := testserver.Redis(t, append([]string{"--replicaof", host + " " + port, "--repl-diskless-sync-delay", "0"}, args...)...)
	follows(t, replica)
	return s, replica
}

func follows(t *testing.T, replica *testserver.RedisServer) {
	t.Helper()
	leasetest.Succeeds(t, func() error {
		if !strings.Contains(replica.Info("replication"), "master_link_status:up") {
			return errors.New("it does not follow yet")
		}
		return nil
	})
}

// With Config.Replicas too, what is held is kept and released while the memory is full.
func TestMemoryFullWithReplicas(t *testing.T) {
	t.Parallel()
	s, _ := withReplica(t)
	b := open(t, s, redislock.Config{Quarantine: time.Millisecond, Replicas: 1, RequestTimeout: patience})
	settled(t, b)
	id := session(t, b, time.Hour)
	held := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	a := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	inQueue(t, b, "one", 1)
	s.Do("CONFIG", "SET", "maxmemory", "1mb")
	_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "two", Lease: backend.NewLeaseID(), Session: id})
	var away *backend.UnavailableError
	if !errors.As(err, &away) || away.MayHold {
		t.Errorf("acquire: %v", err)
	}
	if r, err := b.Renew(t.Context(), backend.RenewRequest{Session: id}); err != nil || r.SessionLost {
		t.Errorf("renew: %+v %v", r, err)
	}
	release(t, b, held)
	release(t, b, a.granted(t))
}

// A request that was executed, and then not confirmed by the replicas, whatever the reason,
// is not executed again, and may have worked.
func TestRefusedAfterItWasDone(t *testing.T) {
	t.Parallel()
	s, _ := withReplica(t)
	s.Do("ACL", "SETUSER", "locks", "on", ">pw", "~*", "&*", "+@all")
	b, err := redislock.Open(t.Context(), "redis://locks:pw@"+s.Addr(), redislock.Config{Quarantine: time.Millisecond, Replicas: 1, RequestTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	settled(t, b)
	other := open(t, s, redislock.Config{Quarantine: time.Millisecond})
	id, otherID := session(t, b, time.Hour), session(t, other, time.Hour)
	acquire(t, other, backend.AcquireRequest{Name: "one", Session: otherID})
	next := ask(t, other, backend.AcquireRequest{Name: "one", Session: otherID})
	inQueue(t, other, "one", 1)
	// The key that is written before WAIT is forbidden, and nothing else.
	s.Do("ACL", "SETUSER", "locks", "resetkeys", "~{hf0}:[^k]*")
	var away *backend.UnavailableError
	_, err = b.Acquire(t.Context(), backend.AcquireRequest{Name: "two", Lease: backend.NewLeaseID(), Session: id})
	if !errors.As(err, &away) || !away.MayHold || !errors.Is(err, redislock.ErrReplicas) {
		t.Errorf("acquire: %v; want ErrReplicas, and that it may be held", err)
	}
	if _, err = b.Break(t.Context(), backend.BreakRequest{Name: "one"}); !errors.Is(err, redislock.ErrReplicas) {
		t.Errorf("break: %v; want ErrReplicas", err)
	}
	info, err := other.Inspect(t.Context(), "one")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != next.Lease {
		t.Errorf("it was taken from the next one, too: %+v, %v", info, err)
	}
}

// One lock that cannot be read does not stop the sweep, and so every client: what else the
// dead session had goes to its waiters.
func TestForeignKeyOfTheDead(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	const ttl = 20 * time.Second // the locks are taken and refused in this time
	id, dead := session(t, b, time.Hour), session(t, b, ttl)
	for _, name := range []string{"bad", "one", "two", "worse"} { // Redis keeps the order of the first two in their session
		_, err := b.Acquire(t.Context(), backend.AcquireRequest{
			Name: name, Lease: backend.NewLeaseID(), Session: dead, Timed: name == "worse" || name == "two", TTL: ttl,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"bad", "one"} { // they are thin, and the refusal inflates them
		_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: id})
		if !errors.Is(err, backend.ErrHeld) {
			t.Fatal(err)
		}
	}
	s.Do("HSET", "{hf0}:l:bad", "@", "what")
	s.Do("ZADD", "{hf0}:t", "0", "worse\n!") // before the record that is there
	for _, name := range []string{"one", "two"} {
		acquire(t, b, backend.AcquireRequest{Name: name, Session: id, Wait: true})
	}
	for _, name := range []string{"bad", "worse"} {
		_, err := b.Acquire(within(t, patience), backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: id})
		if !errors.Is(err, redislock.ErrForeignData) {
			t.Errorf("acquire %q: %v", name, err)
		}
	}
	if err := b.EndSession(t.Context(), id); err != nil {
		t.Error(err)
	}
}

// The greatest token cannot be read as a lock is handed over: the lock is free nevertheless,
// and goes to the next waiter when the token can be read again.
func TestForeignTokenAtAHandOver(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	held := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	a := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	inQueue(t, b, "one", 1)
	s.Do("RENAME", "{hf0}:f", "aside")
	s.Do("SET", "{hf0}:f", "what")
	err := b.Release(t.Context(), backend.ReleaseRequest{Name: "one", Lease: held.Lease, Session: id})
	if !errors.Is(err, redislock.ErrForeignData) {
		t.Errorf("release: %v", err)
	}
	s.Do("RENAME", "aside", "{hf0}:f")
	if _, err := b.Exec(t.Context(), true, [][]string{{"check", string(id), "one", string(a.Lease)}}); err != nil {
		t.Fatal(err)
	}
	release(t, b, a.granted(t))
}

// A server that became a replica refuses a batch as a whole, as a function and as a script:
// then another server is located.
func TestReplicaRefusesTheBatch(t *testing.T) {
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		s, cfg := quick(t, args...)
		b := open(t, s, cfg)
		id := session(t, b, time.Hour)
		s.Do("REPLICAOF", "127.0.0.1", strconv.Itoa(testserver.FreePort(t)))
		for _, mode := range []string{"x", "s"} {
			_, err := b.Exec(t.Context(), true, [][]string{
				{"acquire", string(id), "0", "0", "0", mode, "1", "", "", "", "one", string(backend.NewLeaseID())},
			})
			if err == nil || !strings.HasPrefix(err.Error(), "redis: READONLY") {
				t.Errorf("mode %s: %v; want READONLY of the whole request", mode, err)
			}
		}
	})
}

// The holder of the lock is not known any more: its session was removed from the records, as
// by an operator. Break frees the lock.
func TestBreakOfWhatNobodyHolds(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	acquire(t, b, backend.AcquireRequest{Name: "one", Session: session(t, b, time.Hour)})
	a := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	inQueue(t, b, "one", 1)
	s.Do("DEL", "{hf0}:x")
	id = session(t, b, time.Hour)
	again := a.AcquireRequest
	a.cancel(nil)
	_ = a.ends(t)
	again.Session = id
	a = ask(t, b, again)
	leasetest.Succeeds(t, func() error {
		if !b.KnownInQueue(a.Lease) {
			return errors.New("it is not in the queue")
		}
		return nil
	})
	if _, err := b.Break(t.Context(), backend.BreakRequest{Name: "one"}); err != nil {
		t.Fatal(err)
	}
	release(t, b, a.granted(t))
}

// The queue of a lock without a holder has only waiters whose sessions are not known any more, as by an operator. They
// are dropped, and the lock is granted and listed like any other.
func TestGrantedAfterUnknownWaiters(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id, unknown := session(t, b, time.Hour), session(t, b, time.Hour)
	held := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	if _, err := b.Exec(t.Context(), true, [][]string{
		{"acquire", string(unknown), "0", "0", "1", "x", "1", "nobody", "", "", "one", string(backend.NewLeaseID())},
	}); err != nil {
		t.Fatal(err)
	}
	s.Do("HDEL", "{hf0}:l:one", string(held.Lease))
	s.Do("HSET", "{hf0}:l:one", "@", "0 0 0 0 0 1 1")
	s.Do("ZREM", "{hf0}:x", "s:"+string(unknown))
	l := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	page, err := b.List(t.Context(), backend.ListRequest{})
	if err != nil || len(page.Locks) != 1 || len(page.Locks[0].Holders) != 1 {
		t.Errorf("%+v, %v; want the lock and its holder", page.Locks, err)
	}
	release(t, b, l)
}

// The session of a waiter ends earlier than the waiter behind it was told: that one is notified, and is not stuck until the
// end that it knew.
func TestWaiterWhoseSessionIsShortened(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	a, b, c := open(t, s, cfg), open(t, s, cfg), open(t, s, cfg)
	aID, bID, cID := session(t, a, time.Hour), session(t, b, time.Hour), session(t, c, time.Hour)
	held := acquire(t, a, backend.AcquireRequest{Name: "one", Session: aID})
	dying := ask(t, b, backend.AcquireRequest{Name: "one", Session: bID})
	inQueue(t, a, "one", 1)
	behind := ask(t, c, backend.AcquireRequest{Name: "one", Session: cID})
	inQueue(t, a, "one", 2)
	if err := b.OpenSession(t.Context(), backend.SessionRequest{ID: bID, TTL: 3 * time.Second}); err != nil {
		t.Fatal(err)
	}
	release(t, a, held)
	dying.granted(t) // and never renewed
	behind.granted(t)
}
