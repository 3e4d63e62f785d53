package recipes

import (
	"context"
	"errors"

	"github.com/holdfast-io/holdfast"
)

// Transfer does something to two accounts. AcquireAll takes the locks in the order of their
// names, whatever the order in which they are given, so two transfers in opposite directions do
// not deadlock. It takes both or none. ctx ends the waiting. The context that move gets ends
// when a lock is lost, and not with ctx: a transfer is not left half done because a caller has
// gone.
func Transfer(ctx context.Context, locks *holdfast.Client, from, to string, move func(context.Context) error) error {
	both, err := locks.AcquireAll(ctx, []string{"account/" + from, "account/" + to})
	if err != nil {
		return err
	}
	err = move(both.Context())
	return errors.Join(err, both.Release(context.WithoutCancel(ctx)))
}
