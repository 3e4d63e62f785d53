package sqllease

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

const (
	// sweepEvery is how often a value that is in use runs the maintenance.
	sweepEvery = 20 * time.Second
	// sweepAgain is the pause after a sweep that has deleted all that it examined: there may be much more. A client that
	// uses new names all the time would fill the table otherwise.
	sweepAgain = 100 * time.Millisecond
	// watchEvery is how often a value with watchers runs it.
	watchEvery = 500 * time.Millisecond
	// SweepAtOnce is how many rows of each table one sweep examines.
	SweepAtOnce = 1000
)

// sweepNowAndThen runs the maintenance while the value is in use. A value that is idle, or whose
// callers only wait, sends nothing.
func (b *Leases) sweepNowAndThen() {
	var cursor string
	full := false
	swept := time.Now()
	for {
		select {
		case <-b.toSweep:
		case <-b.life.Done():
			return
		}
		still, watched := b.maintenance()
		if still {
			continue
		}
		every := retry.About(sweepEvery)
		pause := every
		if watched { // perhaps forever
			pause = watchEvery
			waiters.Signal(b.toSweep)
		}
		if full {
			pause = sweepAgain
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-b.life.Done():
			timer.Stop()
			return
		}
		ctx, cancel := context.WithTimeout(b.life, batchTime)
		b.sweepDead(ctx)
		if full || time.Since(swept) >= every {
			swept = time.Now()
			if cursor, full = b.Sweep(ctx, cursor, Remembered); cursor != "" {
				waiters.Signal(b.toSweep)
			}
		}
		cancel()
	}
}

// maintenance reports whether a test has stopped the maintenance, and whether there are watchers.
func (b *Leases) maintenance() (bool, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.still, b.watchers > 0
}

// sweepDead ends what has expired, in all locks where it has. Locks with waiters come first.
func (b *Leases) sweepDead(ctx context.Context) {
	names, err := b.store.Dead(ctx, watchEvery/2) //nolint:mnd // half
	if err != nil {
		return // until the next time
	}
	b.tendAll(names)
}

// Sweep deletes what has been over for at least age in some of the locks whose names are greater
// than after. It returns the name to continue with, empty when there are no more, and whether it has deleted as many
// rows as it can.
func (b *Leases) Sweep(ctx context.Context, after string, age time.Duration) (string, bool) {
	w, err := b.store.Sweep(ctx, after, age)
	if err != nil {
		return after, false // until the next time
	}
	b.tendAll(w.Dead)
	if len(w.Names) < SweepAtOnce {
		return "", false // from the start
	}
	return w.Names[len(w.Names)-1], w.Deleted == SweepAtOnce
}

func (b *Leases) tendAll(names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range names {
		b.tend(name)
	}
}
