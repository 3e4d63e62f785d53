package redislock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// Under load the server is killed and starts empty, twice: no two holders believe at the same
// time that they have the lock, and tokens grow.
func TestRestartEmptyUnderLoad(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Redis(t)
	cfg := redislock.Config{Quarantine: 1500 * time.Millisecond, RequestTimeout: time.Second}
	const ttl = time.Second
	settled(t, open(t, s, cfg))

	type belief struct {
		token    fence.Token
		from, to time.Time
	}
	var mu sync.Mutex
	var beliefs []belief
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		b := open(t, s, cfg)
		wg.Go(func() {
			for n := 1; ctx.Err() == nil; n++ {
				req := backend.AcquireRequest{Name: "one", Lease: backend.NewLeaseID(), Timed: true, TTL: ttl}
				g, err := b.Acquire(t.Context(), req)
				if err != nil {
					<-time.After(2 * time.Millisecond)
					continue
				}
				held := belief{token: g.Token, from: time.Now(), to: g.Asked.Add(g.Left)}
				<-time.After(5 * time.Millisecond)
				if n%5 != 0 { // some are never released
					if now := time.Now(); now.Before(held.to) {
						held.to = now
					}
					_ = b.Release(t.Context(), backend.ReleaseRequest{Name: "one", Lease: req.Lease, Abandon: true})
				}
				if held.from.Before(held.to) {
					mu.Lock()
					beliefs = append(beliefs, held)
					mu.Unlock()
				}
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(beliefs)
	}
	for range 3 {
		before := count()
		leasetest.Eventually(t, "there are grants", func() bool { return count() >= before+5 })
		s.RestartEmpty()
	}
	stop()
	wg.Wait()
	for i, x := range beliefs {
		for _, y := range beliefs[i+1:] {
			if x.from.Before(y.to) && y.from.Before(x.to) {
				t.Errorf("two clients held the lock at the same time: %+v and %+v", x, y)
			}
			if x.token == y.token || x.to.Before(y.from) && x.token > y.token {
				t.Errorf("token %d, then %d", x.token, y.token)
			}
		}
	}
}
