package recipes

import (
	"context"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/fence"
)

// Step is a part of long work. It writes with the token, and stops when the context ends.
type Step func(ctx context.Context, token fence.Token) error

// LongWork does the steps, for hours if need be, under a lock of a short TTL. The lock is
// renewed as long as this process lives, and free soon after it died. Before each step LongWork
// checks that the lock is still held.
func LongWork(ctx context.Context, locks *holdfast.Client, name string, steps ...Step) error {
	return locks.Do(ctx, name, func(ctx context.Context, lock *holdfast.Lock) error {
		for _, step := range steps {
			if ctx.Err() != nil {
				return context.Cause(ctx) // lost, and why
			}
			if err := step(ctx, lock.Token()); err != nil {
				return err
			}
		}
		return nil
	})
}
