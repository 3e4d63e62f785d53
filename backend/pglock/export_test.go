package pglock

import (
	"context"
	"time"
)

// Internals that the tests use.

// KeepFromSweeping stops the value from putting things in order.
func (b *Backend) KeepFromSweeping() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.still = true
}

// Sweep puts everything in order that was over for so long.
func (b *Backend) Sweep(ctx context.Context, age time.Duration) { b.sweep(ctx, "", age) }

// RecodeLetter decodes a payload and tells how many things it says to look at, how many
// grants it tells, and whether it is the echo.
func RecodeLetter(payload string) (int, int, bool) {
	l, granted, hello := decodeLetter(payload)
	return len(l.leases) + len(l.sessions), len(granted), hello
}

// DecodeEvent reads an event.
func DecodeEvent(payload string) bool {
	_, ok := decodeEvent(payload)
	return ok
}

// What has no exported name of its own.
var ParseURL = parseURL
