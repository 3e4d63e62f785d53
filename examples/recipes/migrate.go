package recipes

import (
	"context"
	"fmt"

	"github.com/holdfast-io/holdfast"
)

// Schema is that of a database.
type Schema interface {
	// Version that the database is at.
	Version(ctx context.Context) (int, error)
	// Migrate brings it to the next one, and notes that with the change.
	Migrate(ctx context.Context) error
}

// Migrate brings the schema to a version. Every pod calls it when it starts: one migrates,
// the others wait for it, and all go on with the schema that they need. A pod that dies on
// the way is followed by the next when its lease is over, which goes on where that was.
func Migrate(ctx context.Context, locks *holdfast.Client, s Schema, want int) error {
	return locks.Do(ctx, "migration", func(ctx context.Context, _ *holdfast.Lock) error {
		for {
			at, err := s.Version(ctx) // under the lock: whoever was before has done it
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
