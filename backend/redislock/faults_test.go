package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	inBothForms(t, programIsForgotten)
}

func programIsForgotten(t *testing.T, args ...string) {
	t.Helper()
	s, cfg := quick(t, args...)
	flush := func() {
		s.Do("SCRIPT", "FLUSH")
		if len(args) == 0 {
			s.Do("FUNCTION", "FLUSH")
		}
	}
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	held := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	flush()
	a := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	inQueue(t, b, "one", 1)
	flush()
	release(t, b, held)
	last := a.granted(t)
	flush()
	if r, err := b.Renew(t.Context(), backend.RenewRequest{Session: id}); err != nil || r.SessionLost {
		t.Errorf("renew: %+v %v", r, err)
	}
	release(t, b, last)
}

// When all clients have died nothing is left but what tokens need and what keeps the dead
// dead, and that expires by itself.
func TestNothingIsLeft(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	const ttl = 20 * time.Second // what is done with one session takes less
	for i := range 10 {
		id := session(t, b, ttl)
		for j := range 20 {
			name := fmt.Sprintf("lock/%d/%d", i, j)
			acquire(t, b, backend.AcquireRequest{Name: name, Session: id})
			if j%5 == 0 {
				ask(t, b, backend.AcquireRequest{Name: name, Session: id})
				ask(t, b, backend.AcquireRequest{Name: name, Session: id, Timed: true, TTL: ttl})
				inQueue(t, b, name, 2)
			}
		}
		acquire(t, b, backend.AcquireRequest{Name: fmt.Sprintf("timed/%d", i), Timed: true, TTL: ttl})
	}
	other := open(t, s, cfg)
	<-time.After(ttl)
	leasetest.Succeeds(t, func() error {
		page, err := other.List(t.Context(), backend.ListRequest{})
		if err == nil && len(page.Locks) > 0 {
			err = fmt.Errorf("%d locks are left", len(page.Locks))
		}
		return err
	})
	keys, ok := s.Do("KEYS", "*").([]any)
	if !ok || len(keys) == 0 {
		t.Fatalf("keys: %v", keys)
	}
	for _, k := range keys {
		key := fmt.Sprint(k)
		left, _ := s.Do("PTTL", key).(int64)
		switch {
		case key == "{hf0}:m":
		case key == "{hf0}:f": // the greatest token
		case strings.HasPrefix(key, "{hf0}:d:"):
			if left <= 0 || time.Duration(left)*time.Millisecond > 5*time.Minute {
				t.Errorf("%s goes in %d ms", key, left)
			}
		default:
			t.Errorf("%s is left", key)
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
	b := open(t, s, cfg)
	const n, ttl = 3000, 15 * time.Second
	dead := session(t, b, ttl)
	id := session(t, b, time.Hour)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: fmt.Sprint("lock/", i), Lease: backend.NewLeaseID(), Session: dead})
			if err != nil && !errors.Is(err, backend.ErrSessionLost) {
				t.Errorf("acquire: %v", err)
			}
		})
	}
	wg.Wait()
	// Another session, that ends after it, waits for some of them. When the server runs again
	// both have ended.
	deadToo := session(t, b, ttl)
	var waiting []*asking
	for i := n - 20; i < n; i++ {
		waiting = append(waiting, ask(t, b, backend.AcquireRequest{Name: fmt.Sprint("lock/", i), Session: deadToo}))
	}
	inQueue(t, b, fmt.Sprint("lock/", n-1), 1)
	s.Process().Stop()
	<-time.After(ttl)
	s.Process().Cont()
	for _, a := range waiting {
		if err := a.ends(t); !errors.Is(err, backend.ErrSessionLost) {
			t.Errorf("who waited under a dead session got %+v, %v", a.grant, err)
		}
	}
	// From the back to the front: the sweep has its own order.
	for i := n - 1; i >= n-20; i-- {
		name := fmt.Sprint("lock/", i)
		info, err := b.Inspect(t.Context(), name)
		if err != nil || len(info.Holders) != 0 {
			t.Fatalf("inspect: %+v %v", info, err)
		}
		l := acquire(t, b, backend.AcquireRequest{Name: name, Session: id})
		if l.Token <= info.Token {
			t.Errorf("token %d after %d", l.Token, info.Token)
		}
	}
	page, err := b.List(t.Context(), backend.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range page.Locks {
		if len(l.Holders) != 1 || l.Holders[0].Session != id {
			t.Errorf("%+v is listed", l)
		}
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

// The server is frozen for longer than a TTL: when it runs again the holder has lost its
// lease, and the waiter has it.
func TestServerStopped(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	cfg.RequestTimeout = 8 * time.Second // all before the server is frozen takes less
	b := open(t, s, cfg)
	const ttl = 12 * time.Second // all before the server is frozen takes less
	losses := make(chan backend.Loss, 10)
	dead := sessionWith(t, b, ttl, func(l backend.Loss) { losses <- l })
	held := acquire(t, b, backend.AcquireRequest{Name: "one", Session: dead})
	a := ask(t, b, backend.AcquireRequest{Name: "one", Session: session(t, b, time.Hour)})
	inQueue(t, b, "one", 1)

	s.Process().Stop()
	began := time.Now()
	_, err := b.Renew(context.WithoutCancel(t.Context()), backend.RenewRequest{Session: dead})
	var away *backend.UnavailableError
	if took := time.Since(began); !errors.As(err, &away) || !away.MayHold || took < cfg.RequestTimeout {
		t.Errorf("renew while the server is frozen: %v, after %s", err, took)
	}
	<-time.After(ttl)
	s.Process().Cont()

	if err := a.ends(t); err != nil && !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("acquire: %v", err)
	} else if err != nil { // its request was lost: it retries
		a = ask(t, b, a.AcquireRequest)
	}
	if next := a.granted(t); next.Token <= held.Token {
		t.Errorf("token %d after %d", next.Token, held.Token)
	}
	leasetest.Succeeds(t, func() error {
		r, err := b.Renew(t.Context(), backend.RenewRequest{Session: dead})
		if err == nil && !r.SessionLost {
			t.Fatal("the session was renewed")
		}
		return err
	})
}

// An acquire whose caller has given up is executed later nevertheless. If it was abandoned in
// the meantime, it grants the lock to no client.
func TestGhosts(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b, other := open(t, s, cfg), open(t, s, cfg)
	id, otherID := session(t, b, time.Hour), session(t, other, time.Hour)

	// The request overtakes its own abandonment, or the reverse: both concurrently, often.
	for range 200 {
		req := backend.AcquireRequest{Name: "one", Lease: backend.NewLeaseID(), Session: id, Timed: true, TTL: time.Hour}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := b.Acquire(ctx, req)
		cancel()
		if err := other.Release(t.Context(), backend.ReleaseRequest{Name: "one", Lease: req.Lease, Session: id, Abandon: true}); err != nil {
			t.Fatal(err)
		}
		if _, again := other.Acquire(t.Context(), req); !errors.Is(again, backend.ErrLost) {
			t.Fatalf("the first was %v; after it was abandoned: %v", err, again)
		}
	}
	// Frozen: the request is in the kernel's buffer.
	s.Process().Stop()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("enough"))
	defer cancel()
	req := backend.AcquireRequest{Name: "one", Lease: backend.NewLeaseID(), Session: id}
	_, err := b.Acquire(ctx, req)
	var away *backend.UnavailableError
	if !errors.As(err, &away) || !away.MayHold {
		t.Errorf("acquire: %v", err)
	}
	s.Process().Cont()
	leasetest.Succeeds(t, func() error { // it was executed
		info, err := other.Inspect(t.Context(), "one")
		if err == nil && len(info.Holders) != 1 {
			err = errors.New("not executed")
		}
		return err
	})
	// An ordinary release of a lease in doubt prevents a later grant, too.
	release(t, b, lease{AcquireRequest: req})
	if _, err := b.Acquire(t.Context(), req); !errors.Is(err, backend.ErrLost) {
		t.Errorf("acquire after the release of a lease in doubt: %v", err)
	}
	acquire(t, other, backend.AcquireRequest{Name: "one", Session: otherID})
}

// Each caller returns when its context ends, also those whose calls wait until a server that does not
// answer has answered the others.
func TestQueuedCallsEndWithTheirContexts(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	b := open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine, RequestTimeout: 2 * patience})
	id := session(t, b, time.Hour)
	s.Process().Stop()
	defer s.Process().Cont()
	ctx, end := context.WithCancelCause(t.Context())
	const callers = 20
	results := make(chan error, callers)
	for i := range callers {
		go func() {
			_, err := b.Acquire(ctx, backend.AcquireRequest{Name: "n" + strconv.Itoa(i), Lease: backend.NewLeaseID(), Session: id})
			results <- err
		}()
	}
	leasetest.Eventually(t, "some wait for those before", func() bool { return b.Queued() > 0 })
	enough := errors.New("enough")
	end(enough)
	late := time.After(patience)
	for range callers {
		select {
		case err := <-results:
			if !errors.Is(err, enough) {
				t.Errorf("acquire: %v", err)
			}
		case <-late:
			t.Fatal("a caller waits although its context has ended")
		}
	}
}

// Keys that Holdfast did not write: an error, never a grant.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	foreign := map[string][]string{
		"lock/string": {"SET", "{hf0}:l:lock/string", "x"},
		"lock/list":   {"RPUSH", "{hf0}:l:lock/list", "x"},
		"lock/hash":   {"HSET", "{hf0}:l:lock/hash", "@", "what"},
		"thin/name":   {"ZADD", "{hf0}:t", "0", "thin/name\nwhat"},
		"thin/record": {"ZADD", "{hf0}:t", "0", "thin/record\nlease\nwhat"},
	}
	for name, command := range foreign {
		s.Do(command...)
		for _, wait := range []bool{false, true} {
			for _, mode := range []backend.Mode{backend.Exclusive, backend.Shared} { // the short way and the long way
				_, err := b.Acquire(within(t, patience), backend.AcquireRequest{
					Name: name, Lease: backend.NewLeaseID(), Session: id, Wait: wait, Mode: mode,
				})
				if !errors.Is(err, redislock.ErrForeignData) || !errors.Is(err, backend.ErrUnavailable) {
					t.Errorf("acquire %q: %v", name, err)
				}
			}
		}
	}
	s.Do("RENAME", "{hf0}:f", "aside")
	for _, command := range [][]string{{"SET", "{hf0}:f", "12x"}, {"SET", "{hf0}:f", ""}, {"HSET", "{hf0}:f", "a", "1"}} {
		s.Do(command...)
		for _, mode := range []backend.Mode{backend.Exclusive, backend.Shared} {
			_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "any", Lease: backend.NewLeaseID(), Session: id, Mode: mode})
			if !errors.Is(err, redislock.ErrForeignData) {
				t.Errorf("acquire with foreign tokens: %v", err)
			}
		}
		s.Do("DEL", "{hf0}:f")
	}
	s.Do("RENAME", "aside", "{hf0}:f")
	// One bad lock does not harm the others that are sent with it.
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			name := "lock/string"
			if i%2 == 0 {
				name = fmt.Sprint("good/", i)
			}
			_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: id})
			if (err == nil) != (i%2 == 0) {
				t.Errorf("acquire %q: %v", name, err)
			}
		})
	}
	wg.Wait()
	for key, command := range map[string][]string{
		"{hf0}:x": {"SET", "{hf0}:x", "x"}, "{hf0}:m": {"HSET", "{hf0}:m", "a", "b"},
	} {
		s.Do("DEL", key)
		s.Do(command...)
		if _, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "any", Lease: backend.NewLeaseID(), Session: id}); !errors.Is(err, redislock.ErrForeignData) {
			t.Errorf("acquire with a foreign %s: %v", key, err)
		}
		s.Do("DEL", key)
	}
	s.Do("SET", "{hf0}:m", "hf3 64 0 0 0 0 g r 1")
	if _, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "any", Lease: backend.NewLeaseID(), Session: id}); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("acquire with a marker of another format: %v", err)
	}
}

// With the memory full nothing is acquired, but what is held is kept and released.
func TestMemoryFull(t *testing.T) {
	t.Parallel()
	inBothForms(t, memoryFull)
}

func memoryFull(t *testing.T, args ...string) {
	t.Helper()
	s, cfg := quick(t, args...)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	held := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	timed := acquire(t, b, backend.AcquireRequest{Name: "two", Session: id, Timed: true, TTL: time.Minute})
	a := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	inQueue(t, b, "one", 1)
	s.Do("CONFIG", "SET", "maxmemory", "1mb")
	_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "three", Lease: backend.NewLeaseID(), Session: id})
	var away *backend.UnavailableError
	if !errors.As(err, &away) || away.MayHold {
		t.Errorf("acquire: %v", err)
	}
	r, err := b.Renew(t.Context(), backend.RenewRequest{
		Session: id, Leases: []backend.TimedRenewal{{Name: "two", Lease: timed.Lease, TTL: time.Hour}},
	})
	if err != nil || r.SessionLost || r.Leases[0].Err != nil || r.Leases[0].Left <= time.Minute {
		t.Errorf("renew: %+v %v", r, err)
	}
	release(t, b, held)
	release(t, b, a.granted(t))
	release(t, b, timed)
	if err := b.EndSession(t.Context(), id); err != nil {
		t.Errorf("end session: %v", err)
	}
}

// A replica refuses writes: it is known that nothing was changed.
func TestReplica(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	s.Do("REPLICAOF", "127.0.0.1", strconv.Itoa(testserver.FreePort(t)))
	_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "one", Lease: backend.NewLeaseID(), Session: id})
	var away *backend.UnavailableError
	if !errors.As(err, &away) || away.MayHold || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("acquire on a replica: %v", err)
	}
}

// A token that the clock cannot follow is refused, and not made up.
func TestClockBehind(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	ahead := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).UnixMicro(), 10) }
	before := ahead(30 * time.Minute)
	s.Do("SET", "{hf0}:f", before)
	l := acquire(t, b, backend.AcquireRequest{Name: "one", Session: id})
	if last := s.Do("GET", "{hf0}:f"); fmt.Sprint(l.Token) != last || fmt.Sprint(l.Token-1) != before {
		t.Errorf("token %d, the greatest until now was %s, and is %v", l.Token, before, last)
	}
	a := ask(t, b, backend.AcquireRequest{Name: "one", Session: id})
	inQueue(t, b, "one", 1)
	s.Do("SET", "{hf0}:f", ahead(2*time.Hour))
	release(t, b, l)
	if err := a.ends(t); !errors.Is(err, redislock.ErrClockBehind) {
		t.Errorf("acquire in the queue: %v", err)
	}
	for _, mode := range []backend.Mode{backend.Exclusive, backend.Shared} {
		s.Do("SET", "{hf0}:f", ahead(2*time.Hour))
		_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: "two", Lease: backend.NewLeaseID(), Session: id, Mode: mode})
		if !errors.Is(err, redislock.ErrClockBehind) || !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("acquire: %v", err)
		}
	}
	if _, err := b.Break(t.Context(), backend.BreakRequest{Name: "two"}); !errors.Is(err, redislock.ErrClockBehind) {
		t.Errorf("break: %v", err)
	}
}

// Any name that is allowed is a name, in one hash slot.
func TestNames(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	names := []string{"{a}", "a{b}c", "}{", "{}", "{hf1}:m", "t:x:y", "@", "!", "*", "[a]", `\`, "%s", "日本", "a b", ":", strings.Repeat("x", 512)}
	inOneSlot := func() {
		keys, _ := s.Do("KEYS", "*").([]any)
		for _, k := range keys {
			if key := fmt.Sprint(k); !strings.HasPrefix(key, "{hf0}:") {
				t.Fatalf("key %q is in another slot", key)
			}
		}
	}
	for _, name := range names {
		l := acquire(t, b, backend.AcquireRequest{Name: name, Session: id})
		timed := ask(t, b, backend.AcquireRequest{Name: name, Session: id, Timed: true, TTL: time.Hour})
		inQueue(t, b, name, 1)
		inOneSlot()
		release(t, b, l)
		release(t, b, timed.granted(t))
		acquire(t, b, backend.AcquireRequest{Name: name, Session: id})
	}
	page, err := b.List(t.Context(), backend.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, l := range page.Locks {
		listed = append(listed, l.Name)
	}
	slices.Sort(names)
	if !slices.Equal(listed, names) {
		t.Errorf("listed are %q", listed)
	}
	inOneSlot()
	if err := b.EndSession(t.Context(), id); err != nil {
		t.Error(err)
	}
}

// A server that may evict keys is logged.
func TestEvictionWarning(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	var log bytes.Buffer
	open(t, s, redislock.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "it is allkeys-lru") {
		t.Errorf("the log is %q", log.String())
	}
	log.Reset()
	s.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	open(t, s, redislock.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if log.Len() > 0 {
		t.Errorf("the log is %q", log.String())
	}
}
