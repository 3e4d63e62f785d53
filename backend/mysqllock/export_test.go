package mysqllock

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// Internals that the tests use.

// KeepFromSweeping stops the periodic maintenance of the value.
func (b *Backend) KeepFromSweeping() { b.leases.KeepStill() }

// Sweep deletes everything that has been over for at least age.
func (b *Backend) Sweep(ctx context.Context, age time.Duration) { b.leases.Sweep(ctx, "", age) }

// NeverQuick makes every request take the long way.
func (b *Backend) NeverQuick() { b.leases.NeverQuick() }

// Quick executes what it can of requests in one round trip.
func (b *Backend) Quick(ctx context.Context, q *sqllease.Quick) error { return store{b}.Quick(ctx, q) }

// IsReadOnly is the expression for a read-only server.
const IsReadOnly = isReadOnly

// MaxQuick is the maximum number of them.
const MaxQuick = maxQuick

// ParseURL parses a URL of the backend.
func ParseURL(raw string) (Config, error) { return parseURL(raw, Config{}, "mysql", parameters()...) }
