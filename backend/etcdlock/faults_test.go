package etcdlock_test

import (
	"bytes"
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

// session opens a session that is renewed until the test ends.
func session(t *testing.T, b backend.Backend, ttl time.Duration) backend.SessionID {
	t.Helper()
	id := backend.NewSessionID()
	err := leasetest.InsistOn(t, func(ctx context.Context) error {
		return b.OpenSession(ctx, backend.SessionRequest{ID: id, TTL: ttl})
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func kept(t *testing.T, b backend.Backend) backend.SessionID {
	t.Helper()
	const ttl = 10 * time.Minute
	return session(t, b, ttl)
}

func request(name string, s backend.SessionID) backend.AcquireRequest {
	return backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: s, Wait: true}
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

type result struct {
	req   backend.AcquireRequest
	grant backend.Grant
	err   error
}

// start acquires in the background.
func start(ctx context.Context, b backend.Backend, req backend.AcquireRequest) <-chan result {
	done := make(chan result, 1)
	go func() {
		g, err := b.Acquire(ctx, req)
		done <- result{req, g, err}
	}()
	return done
}

func receive(t *testing.T, c <-chan result) result {
	t.Helper()
	select {
	case r := <-c:
		return r
	case <-time.After(patience):
		t.Fatal("no answer")
		return result{}
	}
}

func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(patience)
	for !f() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not in time: %s", what)
		}
	}
}

func release(t *testing.T, b backend.Backend, req backend.AcquireRequest) {
	t.Helper()
	calls := 0
	err := leasetest.InsistOn(t, func(ctx context.Context) error {
		calls++
		return b.Release(ctx, backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: req.Session})
	})
	if err != nil && (calls == 1 || !errors.Is(err, backend.ErrLost)) { // it may have worked before
		t.Fatalf("Release: %v", err)
	}
}

// startInsisting acquires in the background, and again while etcd is unavailable.
func startInsisting(t *testing.T, b backend.Backend, req backend.AcquireRequest) <-chan result {
	t.Helper()
	done := make(chan result, 1)
	go func() {
		g, err := leasetest.Insist(t, func(ctx context.Context) (backend.Grant, error) { return b.Acquire(ctx, req) })
		done <- result{req, g, err}
	}()
	return done
}

func TestLostReply(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	proxy := chaos.Start(t, members[0].Addr())
	b := through(t, proxy, "&timeout=30s")
	other := direct(t, members)
	s := kept(t, b)
	for _, req := range []backend.AcquireRequest{
		request("exclusive", s),
		{Name: "shared", Lease: backend.NewLeaseID(), Session: s, Wait: true, Mode: backend.Shared, Limit: 3, Permits: 2},
		{Name: "try", Lease: backend.NewLeaseID(), Session: s},
		{Name: "timed", Lease: backend.NewLeaseID(), Session: s, Timed: true, TTL: time.Minute},
	} {
		// A write carries the ID in the value of the entry; a read does not.
		lost := proxy.LoseReply(func(p []byte) bool { return bytes.Contains(p, []byte(`"lease":"`+string(req.Lease))) })
		ctx, cancel := context.WithCancel(t.Context())
		done := start(ctx, b, req)
		select {
		case <-lost:
		case <-time.After(patience):
			t.Fatalf("%s: nothing was sent", req.Name)
		}
		// The caller gives up only after the request has arrived: giving up earlier would withdraw
		// it.
		var info backend.LockInfo
		await(t, "the request has arrived", func() bool {
			info = eventually(t, func(ctx context.Context) (backend.LockInfo, error) { return other.Inspect(ctx, req.Name) })
			return len(info.Holders) == 1 && info.Holders[0].Lease == req.Lease
		})
		cancel()
		if r := receive(t, done); r.err == nil {
			t.Fatalf("%s: granted without an answer", req.Name)
		}
		proxy.Heal()
		proxy.Reset()
		for _, who := range []backend.Backend{b, other} {
			g := eventually(t, func(ctx context.Context) (backend.Grant, error) { return who.Acquire(ctx, req) })
			if g.Token != info.Holders[0].Token {
				t.Errorf("%s: the repeated Acquire returned token %d, want %d", req.Name, g.Token, info.Holders[0].Token)
			}
		}
		release(t, b, req)
		// The first request may still be on its way, so the lease got a tombstone.
		if _, err := other.Acquire(t.Context(), req); !errors.Is(err, backend.ErrLost) {
			t.Errorf("%s: acquired again after its release: %v", req.Name, err)
		}
	}
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
		held := request(fault.name, hs)
		eventually(t, func(ctx context.Context) (backend.Grant, error) { return holding.Acquire(ctx, held) })
		waiter := request(fault.name, ws)
		done := start(t.Context(), waiting, waiter)
		await(t, "in the queue", func() bool { return waiting.Waiting(fault.name) == 1 })
		fault.do()
		release(t, holding, held)
		if fault.name == "compacted" {
			compact(t, members)
		}
		fault.heal()
		healed := time.Now()
		r := receive(t, done)
		if r.err != nil || !r.grant.Waited {
			t.Fatalf("%s: %+v, %v", fault.name, r.grant, r.err)
		}
		// The first timer, after 7.5 s, may be faster than the new watch, if a busy machine needed so long until then.
		const wakes = 3 * time.Second
		if r.grant.ByTimer && fault.reported && time.Since(healed) > wakes {
			t.Errorf("%s: the watch reported that it had ended, and only a timer found the grant", fault.name)
		}
		release(t, waiting, waiter)
	}
}

func TestServerSleepsPastTheTTL(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	members := etcd(t)
	holding, waiting := direct(t, members), direct(t, members)
	const ttl = 12 * time.Second // the waiter is in the queue in this time
	began := time.Now()          // of the last renewal, at the latest
	hs, ws := session(t, holding, ttl), session(t, waiting, time.Minute)
	held := request("lock", hs)
	first, err := holding.Acquire(t.Context(), held)
	if err != nil {
		t.Fatal(err)
	}
	done := startInsisting(t, waiting, request("lock", ws))
	await(t, "in the queue", func() bool { return waiting.Waiting("lock") == 1 })

	members[0].Process().Stop()
	// The signal takes a moment to arrive: a renewal may be answered before it.
	for err = nil; err == nil; {
		sent := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), ttl/4)
		if _, err = holding.Renew(ctx, backend.RenewRequest{Session: hs}); err == nil {
			began = sent
		}
		cancel()
	}
	if !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Renew while etcd sleeps: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), ttl*3/2)
	defer cancel()
	_, err = holding.Acquire(ctx, backend.AcquireRequest{Name: "other", Lease: backend.NewLeaseID(), Session: hs})
	var away *backend.UnavailableError
	if !errors.As(err, &away) || !away.MayHold {
		t.Errorf("Acquire while etcd sleeps: %v; it has to say that it may have worked", err)
	}
	<-ctx.Done()
	members[0].Process().Cont()
	second := receive(t, done)
	if second.err != nil {
		t.Fatal(second.err)
	}
	if since := time.Since(began); since < ttl {
		t.Errorf("handed over %s after the last renewal, with a TTL of %s", since, ttl)
	}
	if second.grant.Token <= first.Token {
		t.Errorf("token %d after %d", second.grant.Token, first.Token)
	}
	res := eventually(t, func(ctx context.Context) (backend.RenewResult, error) {
		return holding.Renew(ctx, backend.RenewRequest{Session: hs})
	})
	if !res.SessionLost {
		t.Error("the session lives, but its lock was handed over")
	}
	if err := holding.OpenSession(t.Context(), backend.SessionRequest{ID: hs, TTL: ttl}); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("OpenSession of a session that ended: %v", err)
	}
	if err := direct(t, members).OpenSession(t.Context(), backend.SessionRequest{ID: hs, TTL: ttl}); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("OpenSession elsewhere of a session that ended: %v", err)
	}
}

func TestLeaderIsKilled(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	members := testserver.StartEtcd(t, testserver.EtcdOptions{Members: 3, Tick: 200}) // only the kill changes the leader
	n := slices.Index(members, leader(t, members))
	members[0], members[n] = members[n], members[0] // the clients ask it first
	holding, waiting := direct(t, members), direct(t, members)
	hs, ws := kept(t, holding), kept(t, waiting)
	held := request("lock", hs)
	first := eventually(t, func(ctx context.Context) (backend.Grant, error) { return holding.Acquire(ctx, held) })
	waiter := request("lock", ws)
	done := startInsisting(t, waiting, waiter)
	await(t, "in the queue", func() bool { return waiting.Waiting("lock") == 1 })
	leader(t, members).Kill()
	again := eventually(t, func(ctx context.Context) (backend.Grant, error) { return holding.Acquire(ctx, held) })
	if again.Token != first.Token {
		t.Errorf("token %d, was %d before the leader was killed", again.Token, first.Token)
	}
	eventually(t, func(ctx context.Context) (struct{}, error) {
		err := holding.Release(ctx, backend.ReleaseRequest{Name: held.Name, Lease: held.Lease, Session: hs})
		if errors.Is(err, backend.ErrLost) { // an answer was lost
			err = nil
		}
		return struct{}{}, err
	})
	if r := receive(t, done); r.err != nil || r.grant.Token <= first.Token {
		t.Errorf("%+v, %v after token %d", r.grant, r.err, first.Token)
	}
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
