package recipes

import (
	"context"

	"github.com/holdfast-io/holdfast"
)

// Read runs f while no client writes. Readers read together, on all machines.
func Read(ctx context.Context, locks *holdfast.Client, name string, f func(context.Context) error) error {
	return locks.Do(ctx, name, func(ctx context.Context, _ *holdfast.Lock) error { return f(ctx) }, holdfast.Shared())
}

// Write runs f while no other client reads or writes. Readers that come later wait behind a
// writer that waits, so that it has its turn.
func Write(ctx context.Context, locks *holdfast.Client, name string, f func(context.Context) error) error {
	return locks.Do(ctx, name, func(ctx context.Context, _ *holdfast.Lock) error { return f(ctx) })
}
