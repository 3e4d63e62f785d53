package redislock_test

import (
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
	b := on(t, s, cfg)
	last, asked := b.take("one"), make(map[backend.LeaseID]*asking)
	for range n {
		a := ask(t, b.Backend, b.req("one"))
		asked[a.Lease] = a
	}
	inQueue(t, b.Backend, "one", n)
	info, err := b.Inspect(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	s.ResetStats()
	<-time.After(3 * time.Second)
	for name, calls := range s.CommandStats() {
		if calls > 0 && !strings.HasPrefix(name, "info") && !strings.HasPrefix(name, "config") && name != "ping" {
			t.Errorf("while they wait: %s was called %d times", name, calls)
		}
	}
	s.ResetStats()
	for i, w := range info.Waiters {
		b.give(last)
		next := asked[w.Lease].granted(t)
		if next.Token <= last.Token || !next.Waited || next.ByTimer {
			t.Fatalf("grant %d: %+v after token %d", i, next.Grant, last.Token)
		}
		last = next
	}
	stats := s.CommandStats()
	for _, command := range []string{"publish", "fcall"} {
		if calls := stats[command]; calls < n || calls > n*11/10 { // a request that was repeated, or a timer, costs one more
			t.Errorf("%d calls of %s for %d hand-overs", calls, command, n)
		}
	}
	b.give(last)
}

// The subscribed connection is killed again and again: the waiters are checked when it is
// subscribed again.
func TestListenerKilled(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, other := on(t, s, cfg), on(t, s, cfg)
	for i := range 10 {
		held := other.take("one")
		first, second := b.asks("one", 1), b.asks("one", 2, timed(time.Hour))
		s.Do("CLIENT", "KILL", "TYPE", "pubsub")
		other.give(held)
		one := first.granted(t)
		b.give(one)
		two := second.granted(t)
		if two.Token <= one.Token || two.Left <= 0 || two.Left > time.Hour {
			t.Fatalf("round %d: %+v after %+v", i, two.Grant, one.Grant)
		}
		b.give(two)
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
	s, cfg := quick(t, "--appendonly", "no") // the disk does not delay it
	for name, f := range map[string]func(e *queueEnv) *asking{
		"the holder dies": func(e *queueEnv) *asking {
			e.take(short)
			return e.waits(e.b, 1, hour)
		},
		"timed and next in the queue": func(e *queueEnv) *asking {
			held := e.take(hour)
			e.waits(e.dead, 1, hour, timed(short))
			return e.gives(held, e.waits(e.b, 2, hour))
		},
		"next in the queue after one in between left": func(e *queueEnv) *asking {
			held := e.take(hour)
			e.waits(e.dead, 1, hour, timed(short))
			between, w := e.waits(e.b, 2, hour), e.waits(e.b, 3, hour)
			between.cancel(nil)
			_ = between.ends(e.t)
			if err := e.b.Release(e.t.Context(), backend.ReleaseRequest{Name: "one", Lease: between.Lease, Session: between.Session, Abandon: true}); err != nil {
				e.t.Fatal(err)
			}
			return e.gives(held, w)
		},
		"a waiter in the queue dies": func(e *queueEnv) *asking {
			held := e.take(hour)
			e.waits(e.b, 1, short)
			return e.gives(held, e.waits(e.b, 2, hour))
		},
		"one of several readers dies after the others left": func(e *queueEnv) *asking {
			first := e.take(hour, shared)
			e.take(short, shared)
			return e.gives(first, e.waits(e.b, 1, hour))
		},
		"a reader of a run that was granted together dies": func(e *queueEnv) *asking {
			held := e.take(hour)
			e.waits(e.dead, 1, hour, shared, timed(short))
			fine, w := e.waits(e.b, 2, hour, shared), e.waits(e.b, 3, hour)
			release(e.t, e.b, held)
			return e.gives(fine.granted(e.t), w)
		},
		"the lease was shortened": func(e *queueEnv) *asking {
			held, w := e.take(hour, timed(hour)), e.waits(e.b, 1, hour)
			r, err := e.b.Renew(e.t.Context(), backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: held.Name, Lease: held.Lease, TTL: short}}})
			if err != nil || r.Leases[0].Err != nil {
				e.t.Fatalf("renew: %+v %v", r, err)
			}
			return w
		},
		"the session was shortened": func(e *queueEnv) *asking {
			held, w := e.take(hour), e.waits(e.b, 1, hour)
			e.shortens(held.Session, short)
			return w
		},
		"the session of a waiter was shortened": func(e *queueEnv) *asking {
			held, dying, w := e.take(hour), e.waits(e.dead, 1, hour), e.waits(e.b, 2, hour)
			e.shortens(dying.Session, short)
			release(e.t, e.b, held)
			dying.granted(e.t) // and never renewed
			return w
		},
		"the waiter before was adopted by a session that dies": func(e *queueEnv) *asking {
			held, before, w := e.take(hour), e.waits(e.b, 1, hour), e.waits(e.b, 2, hour)
			again := before.AcquireRequest
			again.Session = session(e.t, e.dead, short)
			ask(e.t, e.dead, again)
			leasetest.Eventually(e.t, "it is adopted", func() bool {
				info, err := e.b.Inspect(e.t.Context(), "one")
				return err == nil && len(info.Waiters) == 2 && info.Waiters[0].Session == again.Session
			})
			return e.gives(held, w)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Keys of its own: no other test's calls move this queue.
			cfg := cfg
			cfg.Prefix = strings.ReplaceAll(name, " ", "-")[:min(len(name), 32)]
			f(&queueEnv{t: t, b: open(t, s, cfg), dead: open(t, s, cfg)}).granted(t)
		})
	}
}

// queueEnv has a Backend, and another one for clients that die: they do nothing any more. Each request has a
// session of its own.
type queueEnv struct {
	t       *testing.T
	b, dead *redislock.Backend
}

func (e *queueEnv) req(ttl time.Duration, changes []change) backend.AcquireRequest {
	return (&client{id: session(e.t, e.b, ttl)}).req("one", changes...)
}

func (e *queueEnv) take(ttl time.Duration, changes ...change) lease {
	return acquire(e.t, e.b, e.req(ttl, changes))
}

func (e *queueEnv) waits(b *redislock.Backend, n int, ttl time.Duration, changes ...change) *asking {
	a := ask(e.t, b, e.req(ttl, changes))
	inQueue(e.t, e.b, "one", n)
	return a
}

func (e *queueEnv) gives(held lease, w *asking) *asking {
	release(e.t, e.b, held)
	return w
}

func (e *queueEnv) shortens(id backend.SessionID, ttl time.Duration) {
	if err := e.b.OpenSession(e.t.Context(), backend.SessionRequest{ID: id, TTL: ttl}); err != nil {
		e.t.Fatal(err)
	}
}

// Of many waiters here for one lock, the last may be the first in the queue: it asked before,
// and was interrupted for a while. A lost notification to it costs the timer, too.
func TestLostPushOfOneAmongMany(t *testing.T) {
	t.Parallel()
	const n = 70
	s, cfg := quick(t)
	b, other := on(t, s, cfg), on(t, s, cfg)
	held, first := other.take("one"), b.asks("one", 1)
	for range n {
		ask(t, b.Backend, b.req("one"))
	}
	inQueue(t, other.Backend, "one", 1+n)
	first.cancel(nil)
	_ = first.ends(t)
	again := ask(t, b.Backend, first.AcquireRequest)
	leasetest.Eventually(t, "it is back", func() bool { return b.KnownInQueue(again.Lease) })
	pushesGoNowhere(t, s, again.Lease)
	other.give(held)
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
	s.Do("HSET", "{hf0}:w:one", string(lease), strings.Replace(rec, "{hf0}:c:", "{hf0}:-:", 1))
}

// A call for a queued lease that does not wait returns the holders of the lock. A call that
// waits for it keeps waiting, and is notified by push.
func TestAskedMeanwhile(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := on(t, s, cfg)
	held, a := b.take("one"), b.asks("one", 1, timed(time.Hour))
	for _, session := range []backend.SessionID{b.id, ""} {
		err := b.try("one", func(r *backend.AcquireRequest) { *r = a.AcquireRequest; r.Wait, r.Session = false, session })
		is(t, "session "+string(session), err, backend.ErrHeld)
	}
	b.give(held)
	if l := a.granted(t); l.ByTimer {
		t.Errorf("the grant is %+v", l.Grant)
	}
	// A timed lease that waited does not stay with the session under which it did.
	if n := s.Do("HLEN", "{hf0}:s:"+string(b.id)); n != int64(1) {
		t.Errorf("the session has %v fields", n)
	}
}
