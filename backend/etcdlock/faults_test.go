package etcdlock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// patience is an upper bound for what a busy machine may take.
const patience = 60 * time.Second

// through returns a backend on the other side of a relay.
func through(t *testing.T, proxy *chaos.Proxy, params string) *etcdlock.Backend {
	t.Helper()
	b, err := etcdlock.Open(t.Context(), "etcd://"+proxy.Addr()+"?min_ttl=1s"+params, etcdlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func direct(t *testing.T, members []*testserver.Etcd) *etcdlock.Backend {
	t.Helper()
	b := open(t, members)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// kept opens a session that lives until the test ends.
func kept(t *testing.T, b backend.Backend) backend.SessionID {
	t.Helper()
	return leasetest.Session(t, b, 10*time.Minute, nil)
}

// eventually repeats a call while etcd is unavailable.
func eventually[V any](t *testing.T, f func(context.Context) (V, error)) V {
	t.Helper()
	v, err := leasetest.Insist(t, f)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestLostReply(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	proxy := chaos.Start(t, members[0].Addr())
	b := through(t, proxy, "&timeout=30s")
	leasetest.LostReply(t, b, direct(t, members), proxy, `"lease":"`)
	if n := b.Slots(); n != 0 {
		t.Errorf("%d slots are in use at the end", n)
	}
}

func TestWatchIsCutWhileWaiting(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	proxy := chaos.Start(t, members[0].Addr())
	waiting, holding := through(t, proxy, "&timeout=15s"), direct(t, members)
	ws, hs := kept(t, waiting), kept(t, holding)
	for _, fault := range []struct {
		name     string
		do       func()
		heal     func()
		reported bool // the watch does not resume by itself
	}{
		{"reset", proxy.Reset, func() {}, false},
		{"black hole", proxy.BlackHole, proxy.Heal, false},
		{"half open", proxy.DropClientHalf, proxy.Heal, false},
		{"compacted", func() { proxy.Refuse(); proxy.Reset() }, proxy.Heal, true},
	} {
		held := leasetest.Ask(fault.name, hs)
		leasetest.Take(t, holding, held)
		waiter := leasetest.Ask(fault.name, ws)
		done := leasetest.Start(t, waiting, waiter)
		leasetest.Eventually(t, "in the queue", func() bool { return waiting.Waiting(fault.name) == 1 })
		fault.do()
		leasetest.Give(t, holding, held)
		if fault.name == "compacted" {
			compact(t, members)
		}
		fault.heal()
		healed := time.Now()
		r := <-done
		if r.Err != nil || !r.Grant.Waited {
			t.Fatalf("%s: %+v, %v", fault.name, r.Grant, r.Err)
		}
		// The first timer, after 7.5 s, may be faster than the new watch, if a busy machine needed so long until then.
		const wakes = 3 * time.Second
		if r.Grant.ByTimer && fault.reported && time.Since(healed) > wakes {
			t.Errorf("%s: the watch reported that it had ended, and only a timer found the grant", fault.name)
		}
		leasetest.Give(t, waiting, waiter)
	}
}

func TestLeaderIsKilled(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	members := testserver.StartEtcd(t, testserver.EtcdOptions{Members: 3, Tick: 200}) // only the kill changes the leader
	n := slices.Index(members, leader(t, members))
	members[0], members[n] = members[n], members[0] // the clients ask it first
	leasetest.LeaderDown(t, direct(t, members), direct(t, members), members[0].Kill)
}

// The clock that ends a call is the caller's. If etcd were told the deadline, its own clock would
// sometimes reach it first, and a caller with time left, if only a moment, would be told that etcd
// is unavailable.
func TestDeadlineIsTheCallers(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const tries, callers = 500, 4
	members := etcd(t)
	b := direct(t, members)
	sess := kept(t, b)
	for try := range tries {
		ended := make(chan error, callers)
		for range callers {
			go func() { ended <- acquireWithin(t, b, sess, time.Duration(500+try*7)*time.Microsecond) }()
		}
		for range callers {
			if err := <-ended; err != nil {
				t.Fatalf("before its deadline: %v", err)
			}
		}
	}
}

// acquireWithin acquires and releases, and returns the error of an acquire that ended before its
// time.
func acquireWithin(t *testing.T, b backend.Backend, sess backend.SessionID, d time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	req := backend.AcquireRequest{
		Name: "short", Lease: backend.NewLeaseID(), Session: sess, Mode: backend.Exclusive,
		Timed: true, TTL: time.Minute, Wait: true,
	}
	_, err := b.Acquire(ctx, req)
	if err != nil && ctx.Err() != nil {
		err = nil
	}
	undone := b.Release(t.Context(), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: sess, Abandon: true})
	return errors.Join(err, undone)
}

// A server that hangs does not keep calls, nor a backend from being closed.
func TestServerGone(t *testing.T) {
	t.Parallel()
	proxy := chaos.Start(t, etcd(t)[0].Addr())
	leasetest.ServerGone(t, through(t, proxy, "&timeout=30s"), proxy)
}
