package redislock_test

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// One renewal keeps ten thousand leases, and ending the session releases them in three
// requests.
func TestManyLeases(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	cfg.RequestTimeout = patience // on a busy machine one of the three may take long
	b := on(t, s, cfg)
	takeMany(t, b.Backend, b.id, 10_000)
	s.ResetStats()
	b.renews()
	if stats := s.CommandStats(); stats["fcall"] != 1 || stats["zadd"] != 1 {
		t.Errorf("a renewal is %v", stats)
	}
	s.ResetStats()
	if err := b.EndSession(t.Context(), b.id); err != nil {
		t.Fatal(err)
	}
	if calls := s.CommandStats()["fcall"]; calls > 3 {
		t.Errorf("the end of the session took %d requests", calls)
	}
	if page, err := b.List(t.Context(), backend.ListRequest{}); err != nil || len(page.Locks) != 0 {
		t.Errorf("%d locks are left: %v", len(page.Locks), err)
	}
}

// A break of many holders takes several steps. Its victims are those that held the lock at the first one: a client that comes
// between two steps keeps the lock.
func TestBreakInParts(t *testing.T) {
	t.Parallel()
	const n = 300
	s, cfg := quick(t)
	b := on(t, s, cfg)
	for range n {
		b.take("n", shared)
	}
	var res backend.BreakResult
	var later []backend.LeaseID
	for more := true; more; {
		var err error
		if more, err = b.BreakPart(t.Context(), backend.BreakRequest{Name: "n"}, &res); err != nil {
			t.Fatal(err)
		}
		l := b.take("n", shared)
		if l.Token <= res.Token {
			t.Errorf("token %d after a step of a break with token %d", l.Token, res.Token)
		}
		later = append(later, l.Lease)
	}
	if len(later) < 3 || len(res.Broken) != n {
		t.Errorf("%d of %d were broken in %d steps", len(res.Broken), n, len(later))
	}
	b.heldBy("n", 0, later...)
}

// The end of a session is reported to its listener, as soon as any client's request finds it.
func TestExpiryIsTold(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	cfg := redislock.Config{Quarantine: redislock.NoQuarantine}
	b, other := open(t, s, cfg), on(t, s, cfg)
	id, losses := lossy(t, b, redislock.MinTTL)
	leasetest.Eventually(t, "the loss is told", func() bool {
		select {
		case l := <-losses:
			if l.Session != id || l.Lease != "" {
				t.Errorf("told %+v", l)
			}
			return true
		case <-time.After(20 * time.Millisecond):
			other.heldBy("n", 0)
			return false
		}
	})
}
