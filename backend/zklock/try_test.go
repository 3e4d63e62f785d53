package zklock_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testserver"
)

// C1: nobody is refused because of one who is refused: who came too late for a lock that was
// free leaves the line while those before it are there, and has the lock when they are not.
func TestRefusalsAreTrue(t *testing.T) {
	t.Parallel()
	const clients, rounds = 4, 1000
	s := testserver.StartZooKeeper(t, 1)[0]
	var mu sync.Mutex
	refused, because := make(map[backend.LeaseID]bool), make(map[backend.LeaseID]bool)
	granted := 0
	var all sync.WaitGroup
	for range clients {
		b := closing(t, s)
		id := session(t, b, 10*time.Minute, nil)
		all.Go(func() {
			for range rounds {
				req := backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Session: id}
				_, err := b.Acquire(within(t), req)
				var held *backend.HeldError
				switch {
				case err == nil:
					err = b.Release(within(t), backend.ReleaseRequest{Name: "n", Lease: req.Lease, Session: id})
					mu.Lock()
					granted++
					mu.Unlock()
				case errors.As(err, &held):
					err = nil
					mu.Lock()
					refused[req.Lease] = true
					for _, h := range held.Holders {
						because[h.Lease] = true
					}
					mu.Unlock()
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	wrong := 0
	for lease := range because {
		if refused[lease] {
			wrong++
		}
	}
	t.Logf("%d granted, %d refused", granted, len(refused))
	if wrong > 0 || granted == 0 || len(refused) == 0 {
		t.Errorf("%d are named as holders that were refused", wrong)
	}
}
