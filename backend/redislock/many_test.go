package redislock_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testserver"
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
