package runner

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// renewsDead renews a session in place of its client, which has not done so for too long.
func renewsDead(b backend.Backend, rarity int) backend.Backend {
	const pollInterval = 20 * time.Millisecond
	type life struct {
		ttl   time.Duration
		until time.Time
	}
	d, t := newDice(b, rarity), newTimers()
	var mu sync.Mutex
	lives := make(map[backend.SessionID]life) // of sessions that their clients renew
	renewOn := func(id backend.SessionID, ttl time.Duration) {
		for retry.Pause(t.ctx, ttl/4) { //nolint:mnd // like clients, but a little more often
			if _, err := b.Renew(t.ctx, backend.RenewRequest{Session: id}); err != nil {
				return // it was ended in order
			}
		}
	}
	takeOver := func(id backend.SessionID, ttl time.Duration) {
		if !d.faulty() {
			return
		}
		if _, err := b.Renew(t.ctx, backend.RenewRequest{Session: id}); err != nil {
			d.spared() // its client had ended it
			return
		}
		t.work.Go(func() { renewOn(id, ttl) })
	}
	t.work.Go(func() {
		for retry.Pause(t.ctx, pollInterval) {
			mu.Lock()
			for id, l := range lives {
				if time.Until(l.until) <= l.ttl/3 { //nolint:mnd // a live client would have renewed twice
					delete(lives, id)
					takeOver(id, l.ttl)
				}
			}
			mu.Unlock()
		}
	})
	return &twisted{
		Backend: d,
		open: func(ctx context.Context, r backend.SessionRequest) error {
			err := b.OpenSession(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			lives[r.ID] = life{r.TTL, time.Now().Add(r.TTL)}
			return err
		},
		renew: func(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
			res, err := b.Renew(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			if l, ok := lives[r.Session]; ok && err == nil {
				lives[r.Session] = life{l.ttl, time.Now().Add(l.ttl)}
			}
			return res, err
		},
		shut: t.shut,
	}
}
