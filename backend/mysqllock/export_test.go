package mysqllock

import (
	"context"
	"time"
)

// Internals that the tests use.

// KeepFromSweeping stops the value from putting things in order.
func (b *Backend) KeepFromSweeping() { b.leases.KeepStill() }

// Sweep puts everything in order that was over for so long.
func (b *Backend) Sweep(ctx context.Context, age time.Duration) { store{b}.Sweep(ctx, "", age) }

// What has no exported name of its own.
func ParseURL(raw string) (Config, error) { return parseURL(raw, "mysql", parameters()...) }
