package recipes

import (
	"context"
	"fmt"

	"github.com/holdfast-io/holdfast"
)

// Schema is the schema of a database.
type Schema interface {
	// Version that the database is at.
	Version(ctx context.Context) (int, error)
	// Migrate brings it to the next version, and records that with the change.
	Migrate(ctx context.Context) error
}

// Migrate brings the schema to a version. Every pod calls it when it starts: one migrates, the
// others wait for it, and all continue with the schema that they need. If a pod dies on the
// way, the next pod continues from there when the lease has ended.
func Migrate(ctx context.Context, locks *holdfast.Client, s Schema, want int) error {
	return locks.Do(ctx, "migration", func(ctx context.Context, _ *holdfast.Lock) error {
		for {
			at, err := s.Version(ctx) // under the lock: an earlier holder may have done it
			if err != nil {
				return fmt.Errorf("read the version of the schema: %w", err)
			}
			if at >= want {
				return nil
			}
			if err := s.Migrate(ctx); err != nil {
				return fmt.Errorf("migrate from %d: %w", at, err)
			}
		}
	})
}
