package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The server forgets its functions and scripts at any time: no client notices.
func TestProgramIsForgotten(t *testing.T) {
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		s, cfg := quick(t, args...)
		flush := func() {
			s.Do("SCRIPT", "FLUSH")
			if len(args) == 0 {
				s.Do("FUNCTION", "FLUSH")
			}
		}
		b := on(t, s, cfg)
		held := b.take("one")
		flush()
		a := b.asks("one", 1)
		flush()
		b.give(held)
		last := a.granted(t)
		flush()
		b.renews()
		b.give(last)
	})
}

// When all clients have died nothing is left but what tokens need and what keeps the dead
// dead, and that expires by itself.
func TestNothingIsLeft(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b, other := open(t, s, cfg), open(t, s, cfg)
	const ttl = 20 * time.Second // what is done with one session takes less
	for i := range 10 {
		c := mortal(t, b, ttl)
		for j := range 20 {
			name := fmt.Sprintf("lock/%d/%d", i, j)
			c.take(name)
			if j%5 == 0 {
				c.asks(name, 1)
				c.asks(name, 2, timed(ttl))
			}
		}
		c.take(fmt.Sprintf("timed/%d", i), timed(ttl))
	}
	<-time.After(ttl)
	leasetest.Eventually(t, "no lock is left", func() bool {
		page, err := other.List(t.Context(), backend.ListRequest{})
		return err == nil && len(page.Locks) == 0
	})
	keys, ok := s.Do("KEYS", "*").([]any)
	if !ok || len(keys) == 0 {
		t.Fatalf("keys: %v", keys)
	}
	for _, k := range keys {
		key := fmt.Sprint(k)
		ms, _ := s.Do("PTTL", key).(int64)
		left := time.Duration(ms) * time.Millisecond
		tomb := strings.HasPrefix(key, "{hf0}:d:") && left > 0 && left <= 5*time.Minute
		if key != "{hf0}:m" && key != "{hf0}:f" && !tomb { // the marker, and the greatest token
			t.Errorf("%s is left for %s", key, left)
		}
	}
}

// A dead session with more leases than one sweep collects: no decision is made on what is
// still on record, and the queue of each lock moves on.
func TestManyLeasesOfTheDead(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	cfg.RequestTimeout = patience // the server is frozen for a while
	b := on(t, s, cfg)
	const n, ttl = 3000, 15 * time.Second
	dead := session(t, b.Backend, ttl)
	takeMany(t, b.Backend, dead, n)
	// Another session, that ends after it, waits for some of them. When the server runs again
	// both have ended.
	too := mortal(t, b.Backend, ttl)
	var waiting []*asking
	for i := n - 20; i < n; i++ {
		waiting = append(waiting, ask(t, b.Backend, too.req(fmt.Sprint("many", i))))
	}
	inQueue(t, b.Backend, fmt.Sprint("many", n-1), 1)
	s.Process().Stop()
	<-time.After(ttl)
	s.Process().Cont()
	for _, a := range waiting {
		is(t, "who waited under a dead session", a.ends(t), backend.ErrSessionLost)
	}
	// From the back to the front: the sweep has its own order.
	for i := n - 1; i >= n-20; i-- {
		name := fmt.Sprint("many", i)
		info, err := b.Inspect(t.Context(), name)
		if err != nil || len(info.Holders) != 0 {
			t.Fatalf("inspect: %+v %v", info, err)
		}
		if l := b.take(name); l.Token <= info.Token {
			t.Errorf("token %d after %d", l.Token, info.Token)
		}
	}
	page, err := b.List(t.Context(), backend.ListRequest{Prefix: "many29", Limit: 200}) // of the dead, too
	if err != nil || len(page.Locks) != 20 {
		t.Errorf("%d locks are listed, %v", len(page.Locks), err)
	}
	if r, err := b.Renew(t.Context(), backend.RenewRequest{Session: dead}); err != nil || !r.SessionLost {
		t.Errorf("renew of the dead: %+v %v", r, err)
	}
}

// Where no server listens, nothing was sent, and the error does not say that it may have worked.
func TestServerIsGone(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	s.Process().Kill()
	leasetest.Unsent(t, b)
}

// Each caller returns when its context ends, also those whose calls wait until a server that does not
// answer has answered the others.
func TestQueuedCallsEndWithTheirContexts(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	b := on(t, s, redislock.Config{Quarantine: redislock.NoQuarantine, RequestTimeout: 2 * patience})
	s.Process().Stop()
	defer s.Process().Cont()
	ctx, end := context.WithCancelCause(t.Context())
	results, callers := make(chan error), 0
	leasetest.Eventually(t, "some wait for those before", func() bool {
		req := b.req("n" + strconv.Itoa(callers))
		callers++
		go func() {
			_, err := b.Acquire(ctx, req)
			results <- err
		}()
		return b.Queued() > 0
	})
	enough := errors.New("enough")
	end(enough)
	late := time.After(patience)
	for range callers {
		select {
		case err := <-results:
			is(t, "acquire", err, enough)
		case <-late:
			t.Fatal("a caller waits although its context has ended")
		}
	}
}

// A token that the clock cannot follow is refused, and not made up.
func TestClockBehind(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := on(t, s, cfg)
	ahead := func(d time.Duration) string {
		token := strconv.FormatInt(time.Now().Add(d).UnixMicro(), 10)
		s.Do("SET", "{hf0}:f", token)
		return token
	}
	before := ahead(30 * time.Minute)
	l := b.take("one")
	if last := s.Do("GET", "{hf0}:f"); fmt.Sprint(l.Token) != last || fmt.Sprint(l.Token-1) != before {
		t.Errorf("token %d, the greatest until now was %s, and is %v", l.Token, before, last)
	}
	a := b.asks("one", 1)
	ahead(2 * time.Hour)
	b.give(l)
	is(t, "acquire in the queue", a.ends(t), redislock.ErrClockBehind)
	for _, mode := range []backend.Mode{backend.Exclusive, backend.Shared} {
		ahead(2 * time.Hour)
		err := b.try("two", func(r *backend.AcquireRequest) { r.Mode = mode })
		is(t, "acquire", err, redislock.ErrClockBehind)
		is(t, "acquire", err, backend.ErrUnavailable)
	}
	_, err := b.Break(t.Context(), backend.BreakRequest{Name: "two"})
	is(t, "break", err, redislock.ErrClockBehind)
}

// A call whose context has ended is not sent, and says so. A lock that it was to release is still known as
// thin: the next release needs no program.
func TestEndedContextsSendNothing(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	opened := open(t, s, cfg)
	var sent sync.Map
	opened.Intercept(func(op string, do func()) { sent.Store(op, true); do() })
	b := withSession(t, opened)
	held := b.take("n")
	isThin(t, s, "n", true)
	sent.Clear()
	enough := errors.New("enough")
	ended, end := context.WithCancelCause(t.Context())
	end(enough)
	_, err := b.Acquire(ended, b.req("m"))
	_, renew := b.Renew(ended, backend.RenewRequest{Session: b.id})
	release := b.Release(ended, backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: b.id})
	for op, err := range map[string]error{"acquire": err, "renew": renew, "release": release} {
		away(t, op, err, false)
		is(t, op, err, enough)
	}
	sent.Range(func(op, _ any) bool { t.Errorf("%s was sent", op); return true })
	asked := s.CommandStats()["fcall"]
	b.give(held)
	if n := s.CommandStats()["fcall"] - asked; n != 0 {
		t.Errorf("the release asked the program %d times", n)
	}
	isThin(t, s, "n", false)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = b.Inspect(ended, "n")
	is(t, "inspect after Close", err, backend.ErrClosed)
}

// A server that may evict keys is logged.
func TestEvictionWarning(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t, "--maxmemory", "100mb")
	for policy, want := range map[string]string{"allkeys-lru": "it is allkeys-lru", "noeviction": ""} {
		var log bytes.Buffer
		s.Do("CONFIG", "SET", "maxmemory-policy", policy)
		open(t, s, redislock.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if got := log.String(); !strings.Contains(got, want) || strings.Contains(got, "level=WARN") != (want != "") {
			t.Errorf("%s: the log is %q", policy, got)
		}
	}
}
