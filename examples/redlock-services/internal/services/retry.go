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

// WithLock runs the operation under a lock, and tries again, after a pause that grows, while
// others have the lock or the store is away. What the operation itself returned is not tried
// again. It gets a context that ends when the lock is lost.
//
// A pause is time in which the lock may be free and nobody comes. To wait in line instead,
// and have it with the push of the release, is holdfast.Wait; this is for those who would
// rather be told soon.
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
		// Random, so that those who came together do not come together again.
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
