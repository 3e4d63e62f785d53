package redislock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// A thousand waiters on one lock, in one Backend: they send nothing while they wait, and each
// hand-over is one call of the script and one notification.
func TestThousandWaiters(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const n = 1000
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	held := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	asked := make([]*asking, n)
	for i := range asked {
		asked[i] = ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
		if i%50 == 0 { // the order in between is not known here
			inQueue(t, b, "one", i+1)
		}
	}
	inQueue(t, b, "one", n)
	info, err := b.Inspect(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	order := make(map[backend.LeaseID]*asking)
	for _, a := range asked {
		order[a.Lease] = a
	}

	s.ResetStats()
	<-time.After(3 * time.Second)
	for name, calls := range s.CommandStats() {
		if calls > 0 && !strings.HasPrefix(name, "info") && !strings.HasPrefix(name, "config") && name != "ping" {
			t.Errorf("while they wait: %s was called %d times", name, calls)
		}
	}

	s.ResetStats()
	last := held
	for i, w := range info.Waiters {
		release(t, b, last)
		next := order[w.Lease].granted(t)
		if next.Token <= last.Token || !next.Waited || next.ByTimer {
			t.Fatalf("grant %d: %+v after token %d", i, next.Grant, last.Token)
		}
		last = next
	}
	stats := s.CommandStats()
	// A request that was repeated, or a timer, costs one more.
	const most = n * 11 / 10
	if stats["publish"] < n || stats["publish"] > most {
		t.Errorf("%d pushes for %d hand-overs", stats["publish"], n)
	}
	if stats["fcall"] < n || stats["fcall"] > most {
		t.Errorf("%d calls of the script for %d hand-overs", stats["fcall"], n)
	}
	release(t, b, last)
}

// The subscribed connection is killed again and again: the waiters are checked when it is
// subscribed again.
func TestListenerKilled(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, other := open(t, s, cfg), open(t, s, cfg)
	id, otherID := session(t, b, time.Hour), session(t, other, time.Hour)
	for i := range 10 {
		held := acquire(t, other, backend.AcquireRequest{Name: "one", Session: otherID})
		a := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
		timed := ask(t, b, backend.AcquireRequest{Name: "one", Session: id, Timed: true, TTL: time.Hour})
		inQueue(t, b, "one", 2)
		s.Do("CLIENT", "KILL", "TYPE", "pubsub")
		release(t, other, held)
		release(t, b, firstOf(t, b, a, timed))
		release(t, b, firstOf(t, b, a, timed))
		if a.grant.Token == timed.grant.Token {
			t.Fatalf("round %d: both have token %d", i, a.grant.Token)
		}
		if timed.grant.Left <= 0 || timed.grant.Left > time.Hour {
			t.Errorf("round %d: the timed lease has %s left", i, timed.grant.Left)
		}
	}
}

// firstOf waits for the one that gets the lock.
func firstOf(t *testing.T, b *redislock.Backend, as ...*asking) lease {
	t.Helper()
	var held backend.LeaseID
	leasetest.Succeeds(t, func() error {
		info, err := b.Inspect(t.Context(), as[0].Name)
		if err == nil && len(info.Holders) != 1 {
			err = errors.New("the lock has no holder")
		}
		if err == nil {
			held = info.Holders[0].Lease
		}
		return err
	})
	for _, a := range as {
		if a.Lease == held {
			return a.granted(t)
		}
	}
	t.Fatalf("%s has it", held)
	return lease{}
}

// A lost notification costs the timer, and is reported.
func TestLostPush(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id, shortID := session(t, b, time.Hour), session(t, b, 20*time.Second)
	renew := func() {
		if r, err := b.Renew(t.Context(), backend.RenewRequest{Session: shortID}); err != nil || r.SessionLost {
			t.Fatalf("renew: %+v %v", r, err)
		}
	}
	held := acquire(t, b, backend.AcquireRequest{Name: "one", Session: shortID})
	a := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	inQueue(t, b, "one", 1)
	renew()
	pushesGoNowhere(t, s, a.Lease)
	release(t, b, held)
	if l := a.granted(t); !l.ByTimer || l.Token <= held.Token {
		t.Errorf("the grant is %+v", l.Grant)
	}
}

// Whatever is ahead of a waiter, and however it got there: when it dies, the queue moves on
// within its TTL. All other sessions live for an hour here, so that a timer that counts on
// the wrong one is late by an hour.
func TestQueueGoesOn(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const short = 12 * time.Second // what a case does before it waits for the end takes less
	const hour = time.Hour
	cases := map[string]func(e *queueEnv) *asking{
		"the holder dies": func(e *queueEnv) *asking {
			e.dies(acquire(e.t, e.b, e.req(short)))
			return e.waits(1, hour)
		},
		"timed and next in the queue": func(e *queueEnv) *asking {
			held := acquire(e.t, e.b, e.req(hour))
			e.waitsTimed(1, short)
			w := e.waits(2, hour)
			release(e.t, e.b, held)
			return w
		},
		"next in the queue after one in between left": func(e *queueEnv) *asking {
			held := acquire(e.t, e.b, e.req(hour))
			e.waitsTimed(1, short)
			between := e.waits(2, hour)
			w := e.waits(3, hour)
			e.leaves(between)
			release(e.t, e.b, held)
			return w
		},
		"a waiter in the queue dies": func(e *queueEnv) *asking {
			held := acquire(e.t, e.b, e.req(hour))
			e.dies(e.waits(1, short))
			w := e.waits(2, hour)
			release(e.t, e.b, held)
			return w
		},
		"one of several readers dies after the others left": func(e *queueEnv) *asking {
			first := acquire(e.t, e.b, e.shared(e.req(hour)))
			e.dies(acquire(e.t, e.b, e.shared(e.req(short))))
			w := e.waits(1, hour)
			release(e.t, e.b, first)
			return w
		},
		"a reader of a run that was granted together dies": func(e *queueEnv) *asking {
			held := acquire(e.t, e.b, e.req(hour))
			doomed := e.timed(e.shared(e.req(hour)), short)
			ask(e.t, e.dead, doomed)
			inQueue(e.t, e.b, e.name, 1)
			fine := ask(e.t, e.b, e.shared(e.req(hour)))
			inQueue(e.t, e.b, e.name, 2)
			w := e.waits(3, hour)
			release(e.t, e.b, held)
			release(e.t, e.b, fine.granted(e.t))
			return w
		},
		"the lease was shortened": func(e *queueEnv) *asking {
			held := acquire(e.t, e.b, e.timed(e.req(hour), hour))
			w := e.waits(1, hour)
			r, err := e.b.Renew(e.t.Context(), backend.RenewRequest{Leases: []backend.TimedRenewal{
				{Name: held.Name, Lease: held.Lease, TTL: short},
			}})
			if err != nil || r.Leases[0].Err != nil {
				e.t.Fatalf("renew: %+v %v", r, err)
			}
			return w
		},
		"the session was shortened": func(e *queueEnv) *asking {
			held := acquire(e.t, e.b, e.req(hour))
			w := e.waits(1, hour)
			if err := e.b.OpenSession(e.t.Context(), backend.SessionRequest{ID: held.Session, TTL: short}); err != nil {
				e.t.Fatal(err)
			}
			return w
		},
		"the waiter before was adopted by a session that dies": func(e *queueEnv) *asking {
			held := acquire(e.t, e.b, e.req(hour))
			before := e.waits(1, hour)
			w := e.waits(2, hour)
			again := before.AcquireRequest
			again.Session = session(e.t, e.dead, short)
			ask(e.t, e.dead, again)
			leasetest.Succeeds(e.t, func() error {
				info, err := e.b.Inspect(e.t.Context(), e.name)
				if err == nil && len(info.Waiters) == 2 && info.Waiters[0].Session != again.Session {
					err = errors.New("not adopted yet")
				}
				return err
			})
			release(e.t, e.b, held)
			return w
		},
	}
	s, cfg := quick(t, "--appendonly", "no") // the disk does not delay it
	for name, f := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Keys of its own: no other test's calls move this queue.
			cfg := cfg
			cfg.Prefix = prefixOf(name)
			e := &queueEnv{t: t, b: open(t, s, cfg), dead: open(t, s, cfg), name: "one"}
			w := f(e)
			w.granted(t)
		})
	}
}

// queueEnv is a lock, a Backend, and another Backend for the clients that die.
type queueEnv struct {
	t       *testing.T
	b, dead *redislock.Backend
	name    string
}

func (e *queueEnv) req(ttl time.Duration) backend.AcquireRequest {
	return backend.AcquireRequest{Name: e.name, Session: session(e.t, e.b, ttl)}
}

func (e *queueEnv) shared(r backend.AcquireRequest) backend.AcquireRequest {
	r.Mode = backend.Shared
	return r
}

func (e *queueEnv) timed(r backend.AcquireRequest, ttl time.Duration) backend.AcquireRequest {
	r.Timed, r.TTL = true, ttl
	return r
}

func (e *queueEnv) waits(n int, ttl time.Duration) *asking {
	a := ask(e.t, e.b, e.req(ttl))
	inQueue(e.t, e.b, e.name, n)
	return a
}

func (e *queueEnv) waitsTimed(n int, ttl time.Duration) {
	ask(e.t, e.dead, e.timed(e.req(time.Hour), ttl))
	inQueue(e.t, e.b, e.name, n)
}

func (e *queueEnv) leaves(a *asking) {
	a.cancel(nil)
	_ = a.ends(e.t)
	err := e.b.Release(e.t.Context(), backend.ReleaseRequest{Name: a.Name, Lease: a.Lease, Session: a.Session, Abandon: true})
	if err != nil {
		e.t.Fatal(err)
	}
}

// dies does nothing: a dead client does not renew.
func (e *queueEnv) dies(any) {}

// prefixOf returns a key prefix made of a text.
func prefixOf(text string) string {
	text = strings.ReplaceAll(text, " ", "-")
	return text[:min(len(text), 32)]
}

// Of many waiters here for one lock, the last may be the first in the queue: it asked before,
// and was interrupted for a while. A lost notification to it costs the timer, too.
func TestLostPushOfOneAmongMany(t *testing.T) {
	t.Parallel()
	const n = 70
	s, cfg := quick(t)
	b, other := open(t, s, cfg), open(t, s, cfg)
	id := session(t, b, time.Hour)
	held := acquire(t, other, backend.AcquireRequest{Name: "one", Session: session(t, other, time.Hour)})
	first := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	inQueue(t, other, "one", 1)
	for range n {
		ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	}
	inQueue(t, other, "one", 1+n)
	first.cancel(nil)
	_ = first.ends(t)
	again := ask(t, b, first.AcquireRequest)
	leasetest.Succeeds(t, func() error {
		if !b.KnownInQueue(again.Lease) {
			return errors.New("it is not back")
		}
		return nil
	})
	pushesGoNowhere(t, s, again.Lease)
	release(t, other, held)
	s.Do("CLIENT", "KILL", "TYPE", "pubsub") // all are checked when it is subscribed again
	if l := again.granted(t); !l.ByTimer {
		t.Errorf("the grant is %+v", l.Grant)
	}
}

// pushesGoNowhere redirects the notifications of a waiter to a channel without subscribers.
func pushesGoNowhere(t *testing.T, s *testserver.RedisServer, lease backend.LeaseID) {
	t.Helper()
	rec, ok := s.Do("HGET", "{hf0}:w:one", string(lease)).(string)
	if !ok {
		t.Fatal("no record of the waiter")
	}
	f := strings.Split(rec, "\n")
	f[7] = "nobody"
	s.Do("HSET", "{hf0}:w:one", string(lease), strings.Join(f, "\n"))
}

// A call for a queued lease that does not wait returns the holders of the lock. A call that
// waits for it keeps waiting, and is notified by push.
func TestAskedMeanwhile(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	held := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	a := ask(t, b, backend.AcquireRequest{Name: "one", Session: id, Timed: true, TTL: time.Hour})
	inQueue(t, b, "one", 1)
	for _, session := range []backend.SessionID{id, ""} {
		req := a.AcquireRequest
		req.Wait, req.Session = false, session
		if _, err := b.Acquire(within(t, patience), req); !errors.Is(err, backend.ErrHeld) {
			t.Errorf("session %q: %v", session, err)
		}
	}
	release(t, b, held)
	if l := a.granted(t); l.ByTimer {
		t.Errorf("the grant is %+v", l.Grant)
	}
	// A timed lease that waited does not stay with the session under which it did.
	if n := s.Do("HLEN", "{hf0}:s:"+string(id)); n != int64(1) {
		t.Errorf("the session has %v fields", n)
	}
}

// A refusal names some of the holders. It does not read all of them.
func TestRefusedByMany(t *testing.T) {
	t.Parallel()
	const n, shown = 100, 16
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	req := func() backend.AcquireRequest {
		return backend.AcquireRequest{Name: "one", Lease: backend.NewLeaseID(), Session: id, Mode: backend.Shared, Limit: n}
	}
	for range n {
		acquire(t, b, req())
	}
	s.ResetStats()
	_, err := b.Acquire(within(t, patience), req())
	var held *backend.HeldError
	if !errors.As(err, &held) || len(held.Holders) != shown {
		t.Errorf("%v", err)
	}
	if calls := s.CommandStats()["hgetall"]; calls > 0 {
		t.Errorf("all holders were read %d times", calls)
	}
}
