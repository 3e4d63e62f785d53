package runner

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/verify/history"
)

// A client that reads that a lock is free and takes it 2 ms later finds another holder in many
// cases. Without contenders it was one in eight in this run, and such a fault of one grant in
// 10,000 was not found.
func TestRivalsMeetARace(t *testing.T) {
	t.Parallel()
	var free, met atomic.Int64
	slow := func(b backend.Backend, _ int) backend.Backend {
		return &twisted{Backend: b, acquire: func(ctx context.Context, r backend.AcquireRequest) (backend.Grant, error) {
			if exclusive(r) && rand.IntN(20) == 0 { // few, so that they do not meet each other
				if info, err := b.Inspect(ctx, r.Name); err == nil && len(info.Holders) == 0 {
					retry.Pause(ctx, 2*time.Millisecond)
					free.Add(1)
					if info, err := b.Inspect(ctx, r.Name); err == nil && len(info.Holders) > 0 {
						met.Add(1)
					}
				}
			}
			return b.Acquire(ctx, r)
		}}
	}
	err := Run(t.Context(), Config{
		URL: "memory://", For: 3 * time.Second, Seed: 1, Profile: Torture, TTL: time.Second, Break: slow, Rate: 1500,
		Record: func(history.Event) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	share := float64(met.Load()) / float64(max(1, free.Load()))
	t.Logf("%d of %d met a holder: %.2f", met.Load(), free.Load(), share)
	if share < 0.2 {
		t.Errorf("%d of %d met a holder", met.Load(), free.Load())
	}
}
