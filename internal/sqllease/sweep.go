package sqllease

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// sweepEvery is how often a value that is in use puts things in order.
	sweepEvery = 20 * time.Second
	// watchEvery is how often one does that somebody watches.
	watchEvery = 500 * time.Millisecond
	// SweepAtOnce is how many rows of each table one sweep looks at.
	SweepAtOnce = 1000
)

// sweepNowAndThen puts things in order while the value is in use. A value that nobody
// uses, and one whose callers only wait, sends nothing.
func (b *Leases) sweepNowAndThen() {
	var cursor string
	swept := time.Now()
	for {
		select {
		case <-b.toSweep:
		case <-b.life.Done():
			return
		}
		if b.keepsStill() {
			continue
		}
		every := sweepEvery/2 + rand.N(sweepEvery)
		pause := every
		if b.watched() { // perhaps for ever
			pause = watchEvery
			kick(b.toSweep)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-b.life.Done():
			timer.Stop()
			return
		}
		ctx, cancel := context.WithTimeout(b.life, flightTime)
		b.sweepDead(ctx)
		if time.Since(swept) >= every {
			swept = time.Now()
			if cursor = b.store.Sweep(ctx, cursor, Remembered); cursor != "" {
				kick(b.toSweep)
			}
		}
		cancel()
	}
}

func (b *Leases) keepsStill() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.still
}

func (b *Leases) watched() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.watchers > 0
}

// sweepDead has locks seen to in which something is over. Those who wait come first.
func (b *Leases) sweepDead(ctx context.Context) {
	names, err := b.store.Dead(ctx, watchEvery/2) //nolint:mnd // half
	if err != nil {
		return // another time
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range names {
		b.tend(name)
	}
}
