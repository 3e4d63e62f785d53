package services

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-io/holdfast"
)

// Retry says how often to try, and how long to pause.
type Retry struct {
	Tries  int           // Default: 3.
	First  time.Duration // the pause after the first try, about. Default: 100 ms.
	Factor float64       // by which the pause grows. Default: 1.5.
}

// WithLock runs the operation under a lock, and retries, after a pause that grows, while other
// clients hold the lock or the store is unavailable. An error of the operation itself is not
// retried. The operation gets a context that ends when the lock is lost.
//
// During a pause the lock may be free while no client takes it. To wait in the queue instead,
// and be granted the lock by the push of the release, use holdfast.Wait; this is for callers
// that want an answer soon.
//
// Errors: holdfast.ErrHeld and holdfast.ErrUnavailable after the last try; the cause of ctx;
// what the operation returned; holdfast.ErrLost.
func WithLock[T any](ctx context.Context, locks *holdfast.Client, name string, r Retry, operation func(context.Context, *holdfast.Lock) (T, error)) (T, error) {
	if r.Tries == 0 {
		r.Tries = 3
	}
	if r.First == 0 {
		r.First = 100 * time.Millisecond
	}
	if r.Factor == 0 {
		r.Factor = 1.5
	}
	var result T
	pause := r.First
	for try := 1; ; try++ {
		began := false
		err := locks.Do(ctx, name, func(ctx context.Context, lock *holdfast.Lock) error {
			began = true
			var err error
			result, err = operation(ctx, lock)
			return err
		}, holdfast.Wait(0))
		if began || err == nil || !errors.Is(err, holdfast.ErrHeld) && !errors.Is(err, holdfast.ErrUnavailable) {
			return result, err
		}
		if try >= r.Tries {
			return result, fmt.Errorf("%d tries: %w", try, err)
		}
		// Random, so that callers that collided do not collide again.
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return result, context.Cause(ctx)
		}
		pause = time.Duration(float64(pause) * r.Factor)
	}
}
