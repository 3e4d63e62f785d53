package mysqllock

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// Internals that the tests use.

// KeepFromSweeping stops the value from putting things in order.
func (b *Backend) KeepFromSweeping() { b.leases.KeepStill() }

// Sweep puts everything in order that was over for so long.
func (b *Backend) Sweep(ctx context.Context, age time.Duration) { store{b}.Sweep(ctx, "", age) }

// Quick does what it can of requests in one round trip.
func (b *Backend) Quick(ctx context.Context, q *sqllease.Quick) error { return store{b}.Quick(ctx, q) }

// IsReadOnly is the expression for it.
const IsReadOnly = isReadOnly

// MaxQuick is how many of them there may be.
const MaxQuick = maxQuick

// What has no exported name of its own.
func ParseURL(raw string) (Config, error) { return parseURL(raw, "mysql", parameters()...) }
