package recipes

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast"
)

// Quota limits how often the whole fleet does something in any window of time.
type Quota struct {
	// Locks is a client on a backend that has timed leases. Required.
	Locks *holdfast.Client
	// Name of what is limited. Required.
	Name string
	// Limit is how often, 1 or more; Window in how long a time. Required.
	Limit  int
	Window time.Duration
}

// Take uses one permit of the quota. With wait it waits, first come first served, until there
// is one; otherwise the error is holdfast.ErrHeld when there is none.
//
// A permit expires by itself at the end of the window: it is never released, and nothing has to
// run for that.
func (q *Quota) Take(ctx context.Context, wait bool) error {
	take := q.Locks.TryAcquire
	if wait {
		take = q.Locks.Acquire
	}
	permit, err := take(ctx, "quota/"+q.Name, holdfast.Limit(q.Limit), holdfast.NoRenew(), holdfast.TTL(q.Window))
	if err != nil {
		return err
	}
	// It counts until its end, whatever happens to this process; the end may have passed by
	// now.
	if _, err = permit.Detach(); errors.Is(err, holdfast.ErrLost) {
		return nil
	}
	return err
}
