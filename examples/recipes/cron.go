package recipes

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast"
)

// OncePerPeriod runs the job of a schedule unless another machine of the fleet has run it in
// this period. Every machine calls it at each tick. It reports whether it ran here.
//
// The lock is kept for three quarters of the period, also when the job is done in a second or
// its machine dies. So the clocks of the machines may differ by less than a quarter of the
// period. A job that takes longer than its period is not started a second time.
func OncePerPeriod(ctx context.Context, locks *holdfast.Client, job string, period time.Duration,
	run func(context.Context, *holdfast.Lock) error,
) (bool, error) {
	ran := false
	err := locks.Do(ctx, "cron/"+job, func(ctx context.Context, lock *holdfast.Lock) error {
		ran = true
		return run(ctx, lock)
	}, holdfast.AtLeast(period*3/4), holdfast.Wait(0))
	if !ran && errors.Is(err, holdfast.ErrHeld) {
		return false, nil // it runs, or ran
	}
	return ran, err
}
