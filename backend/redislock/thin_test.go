package redislock_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The whole suite without watchers, so that locks are thin: all of one value, and some of another, where the others are
// inflated behind the back of the client that took them.
func TestConformanceThin(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Redis(t)
	settled(t, open(t, s, briefly))
	as := leasetest.Drawn(t,
		func(b *redislock.Backend) backend.Backend { return leasetest.Unwatched{Backend: b} },
		func(b *redislock.Backend) backend.Backend { b.InflateBetween(); return leasetest.Unwatched{Backend: b} },
	)
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := redislock.Open(t.Context(), "redis://"+s.Addr(), briefly)
			if err != nil {
				t.Fatalf("open: %v", err)
			}
			return as(b)
		},
		Restart:    func(backendtest.T) { s.Restart() },
		NoSlowDisk: "TestConformance has the same server on one",
	})
}

// isThin fails unless the server has the lock in the thin form, or in another one.
func isThin(t *testing.T, s *testserver.RedisServer, name string, want bool) {
	t.Helper()
	if rec := thin(s, name); (rec != "") != want {
		t.Errorf("%q is thin: %t, and must be %t", name, !want, want)
	}
}

// lockKeys returns the keys that are about locks, and what sessions know of them.
func lockKeys(s *testserver.RedisServer) []string {
	var found []string
	all, _ := s.Do("KEYS", "{hf0}:*").([]any)
	for _, k := range all {
		key := strings.TrimPrefix(fmt.Sprint(k), "{hf0}:")
		switch {
		case len(key) > 1 && strings.Contains("loqwd", key[:1]), key == "t", key == "n":
			found = append(found, key)
		case strings.HasPrefix(key, "s:"):
			for _, field := range s.Do("HKEYS", k.(string)).([]any) {
				if field != "@" {
					found = append(found, key+"/"+fmt.Sprint(field))
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

// A free lock that no other client wants costs one call and one ZREM, leaves nothing, and its
// tokens grow together with those of the other form.
func TestThinPair(t *testing.T) {
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		s, cfg := quick(t, args...)
		b, other := open(t, s, cfg), open(t, s, cfg)
		id, otherID := session(t, b, time.Hour), session(t, other, time.Hour)
		for range 20 { // until it has all its connections
			release(t, b, acquire(t, b, backend.AcquireRequest{Name: "one", Session: id}))
		}
		before := lockKeys(s)
		s.ResetStats()
		first := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id, Owner: "ann", Note: "why"})
		isThin(t, s, "one", true)
		release(t, b, first)
		stats := s.CommandStats()
		calls := stats["fcall"] + stats["evalsha"]
		if calls != 1 || stats["zrem"] != 1 || stats["hset"]+stats["hdel"]+stats["del"] > 0 {
			t.Errorf("a pair is %v", stats)
		}
		if left := lockKeys(s); !slices.Equal(left, before) {
			t.Errorf("it leaves %q", left)
		}
		second := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id, Wait: true})
		waiter := ask(t, other, backend.AcquireRequest{Name: "one", Session: otherID})
		inQueue(t, other, "one", 1)
		isThin(t, s, "one", false)
		release(t, b, second)
		third := waiter.granted(t)
		release(t, other, third)
		fourth := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
		isThin(t, s, "one", true)
		release(t, b, fourth)
		if left := lockKeys(s); !slices.Equal(left, before) {
			t.Errorf("all of them leave %q", left)
		}
		for _, pair := range [][2]lease{{first, second}, {second, third}, {third, fourth}} {
			if pair[0].Token >= pair[1].Token {
				t.Errorf("token %d after %d", pair[1].Token, pair[0].Token)
			}
		}
	})
}

// What is shown of a thin lock is exact, shows it in its place in the list, and leaves it
// thin. Names of which one begins with the other are told apart.
func TestThinIsShown(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, other := open(t, s, cfg), open(t, s, cfg)
	id := session(t, b, time.Hour)
	var want []string
	for i, name := range []string{"aa", "a b", "a!", "a", "b/c", "b", "Z", "é"} {
		l := acquire(t, b, backend.AcquireRequest{Name: name, Session: id, Owner: "ann", Note: "why", Wait: i%4 < 2})
		want = append(want, name)
		if i%2 == 0 {
			inflate(t, other, name)
		}
		info, err := other.Inspect(t.Context(), name)
		if err != nil || len(info.Holders) != 1 || info.Limit != 1 || info.Token != l.Token || len(info.Waiters) > 0 {
			t.Fatalf("%+v, %v", info, err)
		}
		h := info.Holders[0]
		if h.Lease != l.Lease || h.Session != id || h.Owner != "ann" || h.Note != "why" || h.Token != l.Token || !h.Since.Equal(l.Since) ||
			h.Left < 59*time.Minute || h.Left > time.Hour || h.Permits != 1 {
			t.Errorf("%+v; want %+v", h, l)
		}
		isThin(t, s, name, i%2 != 0)
	}
	slices.Sort(want)
	for _, limit := range []int{1, 2, 3, 100} {
		var got []string
		for page := (backend.ListPage{Next: ""}); ; {
			var err error
			if page, err = other.List(t.Context(), backend.ListRequest{After: page.Next, Limit: limit}); err != nil {
				t.Fatal(err)
			}
			for _, l := range page.Locks {
				got = append(got, l.Name)
			}
			if page.Next == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("by %d: %q; want %q", limit, got, want)
		}
	}
	page, err := other.List(t.Context(), backend.ListRequest{Prefix: "a", After: "a"})
	if err != nil || len(page.Locks) != 3 {
		t.Errorf("%+v, %v", page, err)
	}
	isThin(t, s, "a b", true)
}

// A waiter arrives after the lock was taken and before the answer does, or after the release
// was called and before it is sent: the lock is handed over to it, once.
func TestWaiterBetweenTakeAndAnswer(t *testing.T) {
	t.Parallel()
	for _, moment := range []string{"acquire", "release"} {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			s, cfg := quick(t)
			b, other := open(t, s, cfg), open(t, s, cfg)
			otherID := session(t, other, time.Hour)
			var waiter *asking
			arrives := func() {
				if waiter == nil {
					waiter = ask(t, other, backend.AcquireRequest{Name: "one", Session: otherID})
					inQueue(t, other, "one", 1)
				}
			}
			b.Intercept(func(op string, do func()) {
				if op == "release" && op == moment {
					arrives()
				}
				do()
				if op == "acquire" && op == moment && thin(s, "one") != "" { // otherwise there was no connection yet
					arrives()
				}
			})
			id := session(t, b, time.Hour)
			l := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
			release(t, b, l)
			next := waiter.granted(t)
			if next.Token <= l.Token {
				t.Errorf("token %d after %d", next.Token, l.Token)
			}
			err := b.Release(t.Context(), backend.ReleaseRequest{Name: "one", Lease: l.Lease, Session: id})
			if !errors.Is(err, backend.ErrLost) {
				t.Errorf("released twice: %v", err)
			}
			if _, err := try(t, b, "one", id); !errors.Is(err, backend.ErrHeld) {
				t.Errorf("it is handed over: %v", err)
			}
			release(t, other, next)
		})
	}
}

// A release arrives twice, the second time when another client has the lock: it keeps it.
func TestReleaseTwice(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, other := open(t, s, cfg), open(t, s, cfg)
	id, otherID := session(t, b, time.Hour), session(t, other, time.Hour)
	next := backend.AcquireRequest{Name: "one", Lease: backend.NewLeaseID(), Session: otherID}
	first := true
	b.Intercept(func(op string, do func()) {
		do()
		if op == "release" && first && thin(s, "one") == "" { // otherwise there was no connection yet
			first = false
			if _, err := other.Acquire(t.Context(), next); err != nil {
				t.Errorf("acquire: %v", err)
			}
			do()
		}
	})
	l := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	err := b.Release(t.Context(), backend.ReleaseRequest{Name: "one", Lease: l.Lease, Session: id})
	if !errors.Is(err, backend.ErrLost) { // the answer to the first one did not arrive
		t.Errorf("release: %v", err)
	}
	if _, err := try(t, b, "one", id); !errors.Is(err, backend.ErrHeld) {
		t.Errorf("another client has it: %v", err)
	}
	release(t, other, lease{AcquireRequest: next})
}

// takeMany takes thin locks with the session, a hundred in each request.
func takeMany(t *testing.T, b *redislock.Backend, id backend.SessionID, many int) {
	t.Helper()
	var ops [][]string
	for i := range many {
		ops = append(ops, []string{"acquire", string(id), "0", "0", "0", "x", "1", "", "", "", fmt.Sprint("many", i), fmt.Sprint("lease", i)})
	}
	for part := range slices.Chunk(ops, 100) {
		if _, err := b.Exec(t.Context(), true, part); err != nil {
			t.Fatal(err)
		}
	}
}

// keptThin takes the lock "one" with a new session, and renews the session for so many times its TTL,
// which it returns. each is called after each renewal. On a machine that is too slow for the TTL, it
// begins again with a longer one.
func keptThin(t *testing.T, b *redislock.Backend, times float64, each func()) (time.Duration, lease) {
	t.Helper()
	for ttl := 2 * time.Second; ; ttl *= 2 {
		id := session(t, b, ttl)
		l := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
		begun := time.Now()
		for {
			r, err := b.Renew(t.Context(), backend.RenewRequest{Session: id})
			if (err != nil || r.SessionLost) && ttl > time.Minute {
				t.Fatalf("a session of %s is not renewed every %s: %+v, %v", ttl, ttl/20, r, err)
			}
			if err != nil || r.SessionLost {
				break
			}
			each()
			if time.Since(begun) > time.Duration(times*float64(ttl)) {
				return ttl, l
			}
			time.Sleep(ttl / 20)
		}
	}
}

// One renewal renews what is thin, whatever its number, and leaves it thin.
func TestThinIsRenewed(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b, other := open(t, s, cfg), open(t, s, cfg)
	otherID := session(t, other, time.Hour)
	_, l := keptThin(t, b, 2, func() {
		if _, err := b.Inspect(t.Context(), "one"); err != nil { // sweeps
			t.Fatal(err)
		}
	})
	isThin(t, s, "one", true)
	if _, err := try(t, other, "one", otherID); !errors.Is(err, backend.ErrHeld) {
		t.Errorf("it is held: %v", err)
	}
	release(t, b, l)
}

// A break takes a thin lock, and its holder learns of it.
func TestThinIsBroken(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, other := open(t, s, cfg), open(t, s, cfg)
	id, losses := lossy(t, b, time.Hour)
	otherID := session(t, other, time.Hour)
	l := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	isThin(t, s, "one", true)
	r, err := other.Break(t.Context(), backend.BreakRequest{Name: "one", Reason: "stuck"})
	if err != nil || len(r.Broken) != 1 || r.Broken[0].Lease != l.Lease || r.Broken[0].Token != l.Token || r.Token <= l.Token {
		t.Fatalf("%+v, %v", r, err)
	}
	next := acquire(t, other, backend.AcquireRequest{Name: "one", Session: otherID})
	if next.Token <= r.Token {
		t.Errorf("token %d after %d", next.Token, r.Token)
	}
	select {
	case lost := <-losses:
		if lost.Lease != l.Lease || lost.Reason != "stuck" {
			t.Errorf("%+v", lost)
		}
	case <-within(t, patience).Done():
		t.Error("the holder is not told")
	}
	if r, err := b.Renew(t.Context(), backend.RenewRequest{Session: id}); err != nil || len(r.Lost) != 1 || r.Lost[0].Lease != l.Lease {
		t.Errorf("%+v, %v", r, err)
	}
	if err := b.Release(t.Context(), backend.ReleaseRequest{Name: "one", Lease: l.Lease, Session: id}); !errors.Is(err, backend.ErrLost) {
		t.Errorf("release: %v", err)
	}
	release(t, other, next)
}

// Thin locks end with their session, whichever client ends it, and whether or not that client knows
// them. Renewals of other sessions remove the rest.
func TestSessionEndsWhileThin(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for how, end := range map[string]func(b, other *redislock.Backend, id backend.SessionID) error{
		"by its client": func(b, _ *redislock.Backend, id backend.SessionID) error { return b.EndSession(t.Context(), id) },
		"by another": func(_, other *redislock.Backend, id backend.SessionID) error {
			return other.EndSession(t.Context(), id)
		},
		"by its TTL": func(_, _ *redislock.Backend, _ backend.SessionID) error { return nil },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s, cfg := quick(t)
			b, other := open(t, s, cfg), open(t, s, cfg)
			ttl := time.Hour
			if how == "by its TTL" {
				ttl = 20 * time.Second // the locks are taken in this time
			}
			otherID := session(t, other, time.Hour)
			id := session(t, b, ttl)
			var ops [][]string // in one request: the session soon ends
			for i := range 100 {
				ops = append(ops, []string{"acquire", string(id), "0", "0", "0", "x", "1", "", "", "", fmt.Sprint("lock", i), fmt.Sprint("lease", i)})
			}
			granted, err := b.Exec(t.Context(), true, ops)
			if err != nil {
				t.Fatal(err)
			}
			last := redislock.Number(granted[99][1])
			isThin(t, s, "lock99", true)
			if err := end(b, other, id); err != nil {
				t.Fatal(err)
			}
			if known := s.Do("ZCARD", "{hf0}:t"); how == "by its client" && known != int64(0) {
				t.Errorf("%v are left", known)
			}
			next := acquire(t, other, backend.AcquireRequest{Name: "lock99", Session: otherID, Wait: true})
			if int64(next.Token) <= last {
				t.Errorf("token %d after %d", next.Token, last)
			}
			if info, err := other.Inspect(t.Context(), "lock0"); err != nil || len(info.Holders) > 0 {
				t.Errorf("%+v, %v", info, err)
			}
			if page, err := other.List(t.Context(), backend.ListRequest{}); err != nil || len(page.Locks) != 1 {
				t.Errorf("%+v, %v", page, err)
			}
			acquire(t, b, backend.AcquireRequest{Name: "kept", Session: session(t, b, time.Hour)})
			for range 20 {
				if _, err := other.Renew(t.Context(), backend.RenewRequest{Session: otherID}); err != nil {
					t.Fatal(err)
				}
			}
			if left := lockKeys(s); slices.ContainsFunc(left, func(k string) bool { return strings.Contains(k, "lock0") }) {
				t.Errorf("%q", left)
			}
			isThin(t, s, "kept", true)
			release(t, other, next)
		})
	}
}

// While a client watches, each release is an event: no lock is thin, and those that were are inflated.
func TestThinIsWatched(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, other := open(t, s, cfg), open(t, s, cfg)
	id := session(t, b, time.Hour)
	const many = 2500 // more than one request inflates
	takeMany(t, b, id, many)
	before := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id, Owner: "ann"})
	isThin(t, s, "one", true)
	events, _ := watching(t, other)
	if n := s.Do("EXISTS", "{hf0}:t"); n != int64(0) {
		t.Errorf("%v are thin", s.Do("ZCARD", "{hf0}:t"))
	}
	release(t, b, before)
	if e := next(t, events); e.Kind != backend.EventReleased || e.Lease != before.Lease || e.Token != before.Token || e.Owner != "ann" {
		t.Errorf("%+v", e)
	}
	after := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	isThin(t, s, "one", false)
	if e := next(t, events); e.Kind != backend.EventAcquired || e.Lease != after.Lease {
		t.Errorf("%+v", e)
	}
	release(t, b, after)
	if e := next(t, events); e.Kind != backend.EventReleased || e.Lease != after.Lease {
		t.Errorf("%+v", e)
	}
}
