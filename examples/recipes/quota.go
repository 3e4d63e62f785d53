package recipes

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast"
)

// Quota lets the whole fleet do something so many times in any window of time.
type Quota struct {
	// Locks is a client on a backend that has timed leases. Required.
	Locks *holdfast.Client
	// Name of what is limited. Required.
	Name string
	// Limit is how often, 1 or more; Window in how long a time. Required.
	Limit  int
	Window time.Duration
}

// Take uses up one of the quota. With wait it waits, first come first served, until there
// is one; otherwise the error is holdfast.ErrHeld when there is none.
//
// A permit falls by itself when the window is over: nobody gives it back, and nothing has
// to run for that.
func (q *Quota) Take(ctx context.Context, wait bool) error {
	take := q.Locks.TryAcquire
	if wait {
		take = q.Locks.Acquire
	}
	permit, err := take(ctx, "quota/"+q.Name, holdfast.Limit(q.Limit), holdfast.NoRenew(), holdfast.TTL(q.Window))
	if err != nil {
		return err
	}
	// It counts until its end, whatever becomes of this process; that may be over by now.
	if _, err = permit.Detach(); errors.Is(err, holdfast.ErrLost) {
		return nil
	}
	return err
}
