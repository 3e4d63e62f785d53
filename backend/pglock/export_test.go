package pglock

import (
	"context"
	"time"
)

// Internals that the tests use.

// KeepFromSweeping stops the periodic maintenance of the value.
func (b *Backend) KeepFromSweeping() { b.leases.KeepStill() }

// Sweep deletes everything that has been over for at least age.
func (b *Backend) Sweep(ctx context.Context, age time.Duration) { b.leases.Sweep(ctx, "", age) }

// NeverQuick makes every request take the long way.
func (b *Backend) NeverQuick() { b.leases.NeverQuick() }

// DecodeEvent decodes an event, and reports whether that worked.
func DecodeEvent(payload string) bool {
	_, ok := decodeEvent(payload)
	return ok
}

// ParseURL parses a URL of the backend.
func ParseURL(raw string) (Config, error) {
	return parseURL(raw, Config{}, ours(), "postgres", "postgresql")
}

// Collide gives every lock of the value the same key.
func (b *Advisory) Collide() { b.key = func(string) int64 { return 1 } }
