package redislock_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// One renewal keeps ten thousand leases, and ending the session releases them in three
// requests.
func TestManyLeases(t *testing.T) {
	t.Parallel()
	const n = 10000
	s, cfg := quick(t)
	cfg.RequestTimeout = patience // on a busy machine one of the three may take long
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	var wg sync.WaitGroup
	for g := range 50 {
		wg.Go(func() {
			for i := range n / 50 {
				_, err := b.Acquire(t.Context(), backend.AcquireRequest{Name: fmt.Sprint(g, "/", i), Lease: backend.NewLeaseID(), Session: id})
				if err != nil {
					t.Errorf("acquire: %v", err)
				}
			}
		})
	}
	wg.Wait()
	s.ResetStats()
	if r, err := b.Renew(t.Context(), backend.RenewRequest{Session: id}); err != nil || r.SessionLost {
		t.Fatalf("renew: %+v %v", r, err)
	}
	stats := s.CommandStats()
	if stats["fcall"] != 1 || stats["zadd"] != 1 {
		t.Errorf("a renewal of %d leases is %v", n, stats)
	}
	s.ResetStats()
	if err := b.EndSession(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if calls := s.CommandStats()["fcall"]; calls > 3 {
		t.Errorf("ending a session of %d leases took %d requests", n, calls)
	}
	if page, err := b.List(t.Context(), backend.ListRequest{}); err != nil || len(page.Locks) != 0 {
		t.Errorf("%d locks are left: %v", len(page.Locks), err)
	}
}

// A break of many holders takes several steps. Its victims are those that held the lock at the first one: who comes
// between two steps keeps the lock.
func TestBreakInParts(t *testing.T) {
	t.Parallel()
	const n = 300
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	shared := func() backend.AcquireRequest {
		return backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Session: id, Mode: backend.Shared}
	}
	for range n {
		acquire(t, b, shared())
	}
	var res backend.BreakResult
	steps, later := 0, make(map[backend.LeaseID]bool)
	for more := true; more; steps++ {
		var err error
		if more, err = b.BreakPart(t.Context(), backend.BreakRequest{Name: "n"}, &res); err != nil {
			t.Fatal(err)
		}
		if l := acquire(t, b, shared()); l.Token <= res.Token {
			t.Errorf("token %d after step %d of a break with token %d", l.Token, steps+1, res.Token)
		} else {
			later[l.Lease] = true
		}
	}
	if steps < 3 || len(res.Broken) != n || len(later) != steps {
		t.Errorf("%d of %d were broken in %d steps", len(res.Broken), n, steps)
	}
	info, err := b.Inspect(t.Context(), "n")
	if err != nil || len(info.Holders) != steps {
		t.Errorf("%d hold the lock, want the %d that came later: %v", len(info.Holders), steps, err)
	}
	for _, h := range info.Holders {
		if !later[h.Lease] {
			t.Errorf("%+v holds the lock", h)
		}
	}
}

// A break whose reply is lost may have been done, and says so.
func TestBreakWithoutReply(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	acquire(t, b, backend.AcquireRequest{Name: "n", Session: session(t, b, time.Hour)})
	relay := chaos.Start(t, s.Addr())
	operator := openURL(t, "redis://"+relay.Addr()+"?quarantine=off&timeout=5s")
	if _, err := operator.Break(within(t, patience), backend.BreakRequest{Name: "nobody's"}); err != nil { // it is connected
		t.Fatal(err)
	}
	relay.Hold(chaos.Replies)
	_, err := operator.Break(within(t, patience), backend.BreakRequest{Name: "n"})
	if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
		t.Errorf("%v; want that it may have been done", err)
	}
	leasetest.Succeeds(t, func() error {
		info, err := b.Inspect(within(t, patience), "n")
		if err == nil && len(info.Holders) > 0 {
			err = fmt.Errorf("%+v", info.Holders)
		}
		return err
	})
}

// The end of a session is reported to its listener, as soon as any client's request finds it.
func TestExpiryIsTold(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	b, other := open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine}), open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine})
	told := make(chan backend.Loss, 4)
	id := sessionWith(t, b, redislock.MinTTL, func(l backend.Loss) { told <- l })
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(time.Minute); ; {
		select {
		case l := <-told:
			if l.Session != id || l.Lease != "" {
				t.Errorf("told %+v", l)
			}
			return
		case <-tick.C:
			if _, err := other.Inspect(t.Context(), "n"); err != nil {
				t.Fatal(err)
			}
		case <-end:
			t.Fatal("nothing was told")
		}
	}
}
