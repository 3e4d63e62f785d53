package pglock

import (
	"context"
	"time"
)

// Internals that the tests use.

// KeepFromSweeping stops the value from putting things in order.
func (b *Backend) KeepFromSweeping() { b.leases.KeepStill() }

// Sweep puts everything in order that was over for so long.
func (b *Backend) Sweep(ctx context.Context, age time.Duration) { store{b}.Sweep(ctx, "", age) }

// Strange is how many locks with a line are remembered that others may free.
func (b *Backend) Strange() int { return b.leases.Strange() }

// DecodeEvent reads an event.
func DecodeEvent(payload string) bool {
	_, ok := decodeEvent(payload)
	return ok
}

// What has no exported name of its own.
func ParseURL(raw string) (Config, error) { return parseURL(raw, ours(), "postgres", "postgresql") }

// Collide gives every lock of the value the same key.
func (b *Advisory) Collide() { b.key = func(string) int64 { return 1 } }
