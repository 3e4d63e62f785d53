package redislock_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/fence"
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
	opened := opening(as("redis://"+s.Addr(), briefly))
	form := leasetest.Drawn(t,
		func(b *redislock.Backend) backend.Backend { return leasetest.Unwatched{Backend: b} },
		func(b *redislock.Backend) backend.Backend { b.InflateBetween(); return leasetest.Unwatched{Backend: b} },
	)
	backendtest.Run(t, backendtest.Harness{
		Open:       func(t backendtest.T) backend.Backend { return form(opened(t).(*redislock.Backend)) }, //nolint:forcetypeassert // it opens these
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
// tokens grow together with those of the other form. What only reads or renews it leaves it thin.
func TestThinPair(t *testing.T) {
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		s, cfg := quick(t, args...)
		b, other := on(t, s, cfg), on(t, s, cfg)
		for range 20 { // until it has all its connections
			b.give(b.take("one"))
		}
		before := lockKeys(s)
		s.ResetStats()
		first := b.take("one", func(r *backend.AcquireRequest) { r.Owner, r.Note = "ann", "why" })
		isThin(t, s, "one", true)
		b.give(first)
		stats := s.CommandStats()
		if calls := stats["fcall"] + stats["evalsha"]; calls != 1 || stats["zrem"] != 1 || stats["hset"]+stats["hdel"]+stats["del"] > 0 {
			t.Errorf("a pair is %v", stats)
		}
		if left := lockKeys(s); !slices.Equal(left, before) {
			t.Errorf("it leaves %q", left)
		}
		second := b.take("one", waits)
		other.heldBy("one", 0, second.Lease)
		if page, err := other.List(t.Context(), backend.ListRequest{}); err != nil || len(page.Locks) != 1 {
			t.Errorf("%+v, %v", page, err)
		}
		b.renews()
		isThin(t, s, "one", true)
		waiter := other.asks("one", 1)
		isThin(t, s, "one", false)
		b.give(second)
		third := waiter.granted(t)
		other.give(third)
		fourth := b.take("one")
		isThin(t, s, "one", true)
		b.give(fourth)
		if left := lockKeys(s); !slices.Equal(left, before) {
			t.Errorf("all of them leave %q", left)
		}
		if first.Token >= second.Token || second.Token >= third.Token || third.Token >= fourth.Token {
			t.Errorf("tokens %d, %d, %d and %d", first.Token, second.Token, third.Token, fourth.Token)
		}
	})
}

// The counter of the tokens is deleted while the server runs, or replaced by an old copy: tokens grow all the same.
func TestTokensGrow(t *testing.T) {
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		s, cfg := quick(t, args...)
		b := on(t, s, cfg)
		var last lease
		grows := func() {
			t.Helper()
			for _, mode := range []backend.Mode{backend.Exclusive, backend.Shared} { // alone, and the long way
				l := b.take("one", func(r *backend.AcquireRequest) { r.Mode = mode })
				b.give(l)
				if l.Token <= last.Token {
					t.Errorf("token %d after %d", l.Token, last.Token)
				}
				last = l
			}
		}
		grows()
		old := s.Do("GET", "{hf0}:f").(string)
		grows()
		s.Do("DEL", "{hf0}:f")
		grows()
		s.Do("SET", "{hf0}:f", old)
		grows()
		// They keep up with the clock, so that they grow after a loss although the next clock is a little behind.
		const idle = 200 * time.Millisecond
		time.Sleep(idle)
		if before := time.Now(); b.take("two").Token < fence.Token(before.Add(-idle/2).UnixMicro()) {
			t.Error("the tokens stay behind the clock")
		}
	})
}

// A waiter arrives after the lock was taken and before the answer does, or after the release
// was called and before it is sent: the lock is handed over to it, once.
func TestWaiterBetweenTakeAndAnswer(t *testing.T) {
	t.Parallel()
	for _, moment := range []string{"acquire", "release"} {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			s, cfg := quick(t)
			opened, other := open(t, s, cfg), on(t, s, cfg)
			var waiter *asking
			arrives := func() {
				if waiter == nil {
					waiter = other.asks("one", 1)
				}
			}
			opened.Intercept(func(op string, do func()) {
				if op == "release" && op == moment {
					arrives()
				}
				do()
				if op == "acquire" && op == moment && thin(s, "one") != "" { // otherwise there was no connection yet
					arrives()
				}
			})
			b := withSession(t, opened)
			l := b.take("one")
			b.give(l)
			next := waiter.granted(t)
			if next.Token <= l.Token {
				t.Errorf("token %d after %d", next.Token, l.Token)
			}
			is(t, "released twice", b.drop(l), backend.ErrLost)
			is(t, "it is handed over", b.try("one"), backend.ErrHeld)
			other.give(next)
		})
	}
}

// A release arrives twice, the second time when another client has the lock: it keeps it.
func TestReleaseTwice(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	opened, other := open(t, s, cfg), on(t, s, cfg)
	var next lease
	opened.Intercept(func(op string, do func()) {
		do()
		if op == "release" && next.Name == "" && thin(s, "one") == "" { // otherwise there was no connection yet
			next = other.take("one")
			do()
		}
	})
	b := withSession(t, opened)
	is(t, "release", b.drop(b.take("one")), backend.ErrLost) // the answer to the first one did not arrive
	is(t, "another client has it", b.try("one"), backend.ErrHeld)
	other.give(next)
}

// A lease of unknown outcome is never released by the short way: its late request must not
// take the lock again.
func TestThinInDoubt(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	opened := open(t, s, cfg)
	late := true
	opened.Intercept(func(op string, do func()) {
		if op != "acquire" || !late {
			do()
		}
		late = late && op != "acquire"
	})
	b := withSession(t, opened)
	req := b.req("one")
	if _, err := b.Acquire(within(t, patience), req); err == nil {
		t.Fatal("there was an answer")
	}
	l := acquire(t, opened, req) // the retry is answered
	isThin(t, s, "one", true)
	b.give(l)
	answer := b.exec("acquire", string(b.id), "0", "0", "0", "x", "1", "", "", "", "one", string(req.Lease))
	if redislock.Word(answer) != "LOST" {
		t.Errorf("the late request was answered with %v", answer)
	}
	b.heldBy("one", 0)
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

// Thin locks end with their session. The client that took them ends them with it; where another one does, renewals of
// other sessions remove them, and nothing else.
func TestThinGarbage(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, other := on(t, s, cfg), on(t, s, cfg)
	const n = 300
	are := func(least, most int64) error {
		if got, _ := s.Do("ZCARD", "{hf0}:t").(int64); got < least || got > most {
			return fmt.Errorf("%d are there, not %d to %d", got, least, most)
		}
		return nil
	}
	for _, ends := range []*client{b, other} {
		dead := session(t, b.Backend, time.Hour)
		takeMany(t, b.Backend, dead, n)
		if err := ends.EndSession(t.Context(), dead); err != nil {
			t.Fatal(err)
		}
		if ends == b {
			if err := are(0, 0); err != nil {
				t.Error(err)
			}
		}
	}
	for i := range 3 {
		b.take(fmt.Sprint("kept", i))
	}
	if err := are(n+3, n+3); err != nil {
		t.Fatalf("%v: nothing is tested", err)
	}
	other.give(other.take("many7")) // it is garbage, and the lock is free
	leasetest.Succeeds(t, func() error {
		b.renews()
		return are(3, 3+8)
	})
	for i := range 3 {
		isThin(t, s, fmt.Sprint("kept", i), true)
	}
}

// A thin lease whose session has expired is lost, and a release of it says so, although what is
// left of it is still on record.
func TestThinReleasedTooLate(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t, "--appendonly", "no") // the disk does not delay it
	b, other := open(t, s, cfg), on(t, s, cfg)
	const ttl = 12 * time.Second // the locks are taken in this time
	dead := mortal(t, b, ttl)
	held := []lease{dead.take("one"), dead.take("two")}
	time.Sleep(ttl + ttl/10)
	for _, l := range held {
		isThin(t, s, l.Name, true)
		is(t, "release", dead.drop(l), backend.ErrLost)
		other.heldBy("none", 0) // its request removes the session before the second one is released
	}
}

// While a client watches, each release is an event: no lock is thin, and those that were are inflated.
func TestThinIsWatched(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, other := on(t, s, cfg), open(t, s, cfg)
	takeMany(t, b.Backend, b.id, 2500) // more than one request inflates
	before := b.take("one", func(r *backend.AcquireRequest) { r.Owner = "ann" })
	isThin(t, s, "one", true)
	events, _ := watching(t, other)
	if n := s.Do("EXISTS", "{hf0}:t"); n != int64(0) {
		t.Errorf("%v are thin", s.Do("ZCARD", "{hf0}:t"))
	}
	b.give(before)
	if e := next(t, events); e.Kind != backend.EventReleased || e.Lease != before.Lease || e.Token != before.Token || e.Owner != "ann" {
		t.Errorf("%+v", e)
	}
	after := b.take("one")
	isThin(t, s, "one", false)
	b.give(after)
	for _, kind := range []backend.EventKind{backend.EventAcquired, backend.EventReleased} {
		if e := next(t, events); e.Kind != kind || e.Lease != after.Lease {
			t.Errorf("%+v", e)
		}
	}
}

// A lock is not thin either that is taken by the request with which the watch begins.
func TestThinBesideTheFirstWatch(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := on(t, s, cfg)
	_, err := b.Exec(t.Context(), true, [][]string{
		{"watch", "60000", "stream"}, {"acquire", string(b.id), "0", "0", "0", "x", "1", "", "", "", "one", string(backend.NewLeaseID())},
	})
	if err != nil {
		t.Fatal(err)
	}
	isThin(t, s, "one", false)
}

// The name of the stream ended while the beginning of a watch inflated what is thin, which takes
// more than one request: what was released until the next request was no event, so the stream
// that others have listened to must not continue under its old name.
func TestStreamEndsWhileInflating(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b, other := on(t, s, cfg), open(t, s, cfg)
	takeMany(t, b.Backend, b.id, 1500) // more than one request inflates
	var streams []string
	other.Intercept(func(op string, do func()) {
		do()
		if op == "watch" {
			streams = append(streams, fmt.Sprint(s.Do("GET", "{hf0}:v")))
			if len(streams) == 1 {
				s.Do("DEL", "{hf0}:v")
			}
		}
	})
	watching(t, other)
	if len(streams) < 2 || streams[0] == streams[1] {
		t.Errorf("the streams are %q", streams)
	}
}
