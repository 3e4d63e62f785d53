package leasetest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// RefusalsAreTrue (C1): no request is refused because of a request that is refused itself. A
// request that came too late for a free lock leaves the queue while those before it are there,
// and is granted the lock when they are not.
func RefusalsAreTrue(t *testing.T, rounds int, clients ...backend.Backend) {
	t.Helper()
	const ttl = 10 * time.Minute
	var mu sync.Mutex
	refused, because := make(map[backend.LeaseID]bool), make(map[backend.LeaseID]bool)
	granted := 0
	var all sync.WaitGroup
	for _, b := range clients {
		id := Session(t, b, ttl, nil)
		all.Go(func() {
			for range rounds {
				req := Ask("n", id)
				req.Wait = false
				_, err := b.Acquire(Within(t), req)
				var held *backend.HeldError
				switch {
				case err == nil:
					err = b.Release(Within(t), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: id})
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
