package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// Garbage of sessions that are gone is removed, and nothing else is.
func TestThinGarbage(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id, dead := session(t, b, time.Hour), session(t, b, time.Hour)
	const n = 300
	for i := range n {
		acquire(t, b, backend.AcquireRequest{Name: fmt.Sprint("dead", i), Session: dead})
	}
	for i := range 3 {
		acquire(t, b, backend.AcquireRequest{Name: fmt.Sprint("kept", i), Session: id})
	}
	if err := open(t, s, cfg).EndSession(t.Context(), dead); err != nil { // which does not know them
		t.Fatal(err)
	}
	if got := s.Do("ZCARD", "{hf0}:t"); got != int64(n+3) {
		t.Fatalf("%v are there: nothing is tested", got)
	}
	leasetest.Succeeds(t, func() error {
		if _, err := b.Renew(t.Context(), backend.RenewRequest{Session: id}); err != nil {
			return err
		}
		if got, _ := s.Do("ZCARD", "{hf0}:t").(int64); got > 3+8 {
			return fmt.Errorf("%v are left", got)
		}
		return nil
	})
	for i := range 3 {
		isThin(t, s, fmt.Sprint("kept", i), true)
	}
}

// A call whose context has ended is not sent, and says so. A lock that it was to release is still known as
// thin: the next release needs no program.
func TestEndedContextsSendNothing(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	var sent atomic.Int32
	b.Intercept(func(_ string, do func()) { sent.Add(1); do() })
	id := session(t, b, time.Hour)
	held := acquire(t, b, backend.AcquireRequest{Name: "n", Session: id})
	isThin(t, s, "n", true)
	before := sent.Load()
	enough := errors.New("enough")
	ended, end := context.WithCancelCause(t.Context())
	end(enough)
	for what, call := range map[string]func(context.Context) error{
		"acquire": func(ctx context.Context) error {
			_, err := b.Acquire(ctx, backend.AcquireRequest{Name: "m", Lease: backend.NewLeaseID(), Session: id})
			return err
		},
		"renew": func(ctx context.Context) error {
			_, err := b.Renew(ctx, backend.RenewRequest{Session: id})
			return err
		},
		"release": func(ctx context.Context) error {
			return b.Release(ctx, backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: id})
		},
	} {
		var away *backend.UnavailableError
		if err := call(ended); !errors.As(err, &away) || away.MayHold || !errors.Is(err, enough) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := sent.Load() - before; n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	asked := s.CommandStats()["fcall"]
	release(t, b, held)
	if n := s.CommandStats()["fcall"] - asked; n != 0 {
		t.Errorf("the release asked the program %d times", n)
	}
	isThin(t, s, "n", false)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Inspect(ended, "n"); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("inspect after Close: %v", err)
	}
}

// With the memory full a thin lock is released, broken and kept, and none is taken.
func TestThinWithTheMemoryFull(t *testing.T) {
	t.Parallel()
	inBothForms(t, func(t *testing.T, args ...string) {
		t.Helper()
		s, cfg := quick(t, args...)
		cfg.RequestTimeout = patience
		b, other := open(t, s, cfg), open(t, s, cfg)
		id, otherID := session(t, b, time.Hour), session(t, other, time.Hour)
		held := make(map[string]lease)
		for _, name := range []string{"released", "broken", "kept", "again"} {
			held[name] = acquire(t, b, backend.AcquireRequest{Name: name, Session: id})
		}
		s.Do("CONFIG", "SET", "maxmemory", "1mb")
		release(t, b, held["released"])
		if _, err := try(t, other, "released", otherID); err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("acquire: %v", err)
		}
		if r, err := b.Renew(t.Context(), backend.RenewRequest{Session: id}); err != nil || r.SessionLost {
			t.Errorf("renew: %+v %v", r, err)
		}
		if _, err := try(t, other, "kept", otherID); err == nil || errors.Is(err, backend.ErrLost) {
			t.Errorf("acquire what is held: %v", err)
		}
		if r, err := other.Break(t.Context(), backend.BreakRequest{Name: "broken"}); err != nil || len(r.Broken) != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		release(t, b, held["kept"])
		if err := other.Release(t.Context(), backend.ReleaseRequest{Name: "again", Lease: held["again"].Lease, Session: id}); err != nil {
			t.Errorf("released by a client that does not know that it is thin: %v", err)
		}
	})
}

// The key of the thin locks, or a member of it, was not written by Holdfast: nothing is granted
// on it.
func TestForeignThinLocks(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	fine := acquire(t, b, backend.AcquireRequest{Name: "fine", Session: id})
	for _, member := range []string{"one\n", "one\nx", "one\nx\ny", "one"} {
		s.Do("ZADD", "{hf0}:t", "0", member)
		_, err := try(t, b, "one", id)
		if member != "one" && !errors.Is(err, redislock.ErrForeignData) || member == "one" && err != nil {
			t.Errorf("%q: %v", member, err)
		}
		s.Do("ZREM", "{hf0}:t", member)
	}
	s.Do("RENAME", "{hf0}:t", "aside")
	s.Do("SET", "{hf0}:t", "what")
	if _, err := try(t, b, "two", id); !errors.Is(err, redislock.ErrForeignData) {
		t.Errorf("acquire: %v", err)
	}
	if err := b.Release(t.Context(), backend.ReleaseRequest{Name: "fine", Lease: fine.Lease, Session: id}); !errors.Is(err, redislock.ErrForeignData) {
		t.Errorf("release: %v", err)
	}
	s.Do("RENAME", "aside", "{hf0}:t")
	release(t, b, fine) // the long way
}

// A lease of unknown outcome is never released by the short way: its late request must not
// take the lock again.
func TestThinInDoubt(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	req := backend.AcquireRequest{Name: "one", Lease: backend.NewLeaseID(), Session: id}
	late := true
	b.Intercept(func(op string, do func()) {
		if op != "acquire" || !late {
			do()
		}
		late = late && op != "acquire"
	})
	if _, err := b.Acquire(within(t, patience), req); err == nil {
		t.Fatal("there was an answer")
	}
	l := acquire(t, b, req) // the retry is answered
	isThin(t, s, "one", true)
	release(t, b, l)
	answer, err := b.Exec(t.Context(), true, [][]string{
		{"acquire", string(id), "0", "0", "0", "x", "1", "", "", "", "one", string(req.Lease)},
	})
	if err != nil || redislock.Word(answer[0]) != "LOST" {
		t.Errorf("the late request was answered with %v, %v", answer, err)
	}
	if info, err := b.Inspect(t.Context(), "one"); err != nil || len(info.Holders) > 0 {
		t.Errorf("the late request took it: %+v, %v", info, err)
	}
}

// Data in another format is refused, and the error says so.
func TestAnotherFormat(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	marker := fmt.Sprint(s.Do("GET", "{hf0}:m"))
	f := strings.Fields(marker)
	f[0] = "hf2"
	earlier := strings.Join(slices.Delete(f, 6, 7), " ") // see lua/marker.lua
	for _, other := range []string{earlier, strings.Replace(marker, "hf5 1 ", "hf6 1 ", 1)} {
		s.Do("SET", "{hf0}:m", other)
		if _, err := try(t, b, "one", id); err == nil || !strings.Contains(err.Error(), "format") {
			t.Errorf("data in format %s: %v", other, err)
		}
	}
}
