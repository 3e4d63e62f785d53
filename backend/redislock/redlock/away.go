package redlock

import (
	"context"
	"fmt"
	"time"
)

// Quarantined returns nil if enough nodes vote. It implements backend.Guarded. Errors:
// *UnavailableError, around a *QuarantineError if a majority would vote but for the nodes
// that may have lost data; ErrClosed; ctx's cause.
func (b *Backend) Quarantined(ctx context.Context) error {
	ctx, cancel, err := b.begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	votes := 0
	var unripe []time.Duration
	p, err := b.ask(ctx, many(opReady), func(_ *poll, x answer) need {
		d := decode(x.list)
		switch {
		case x.err != nil:
		case d.Text() == "Q":
			unripe = append(unripe, d.Micros())
		default:
			votes++
		}
		if votes >= b.majority {
			return nobody
		}
		return everyone
	})
	switch {
	case err != nil:
		return toKind(ctx, opReady, err, false)
	case votes >= b.majority:
		return nil
	case votes+len(unripe) < b.majority:
		return toKind(ctx, opReady, p.failure(), false)
	}
	return inQuarantine(opReady, len(b.nodes), unripe, b.majority-votes, false)
}

// Away queries every node and returns those that do not answer. It implements
// backend.Redundant. Nodes are numbered in the order in which they were configured, from 1. A
// node that answers and does not vote yet, because it lost its data, is not among them.
//
// Errors: *UnavailableError where no majority answers; ErrClosed; ctx's cause.
func (b *Backend) Away(ctx context.Context) ([]string, error) {
	ctx, cancel, err := b.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	// In addition to the deadline of each request, which may be long: the caller wants to
	// know now.
	const atMost = 2 * time.Second
	asking, stop := context.WithTimeout(ctx, atMost)
	defer stop()
	p, err := b.ask(asking, many(opReady), func(*poll, answer) need { return everyone })
	if err != nil && (ctx.Err() != nil || asking.Err() == nil) {
		return nil, toKind(ctx, opReady, err, false)
	}
	if p.good < b.majority {
		return nil, toKind(ctx, opReady, p.failure(), false)
	}
	var away []string
	for i, err := range p.reasons() {
		if err != nil {
			away = append(away, fmt.Sprintf("node %d of %d is unavailable: %v", i+1, len(b.nodes), err))
		}
	}
	return away, nil
}
