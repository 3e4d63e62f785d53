package memlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

// Two Backends on one store are what two processes would have.
func Example() {
	ctx := context.Background()
	store := memlock.NewStore()
	a, b := store.Open(), store.Open()
	defer a.Close()
	defer b.Close()

	ask := func() backend.AcquireRequest {
		return backend.AcquireRequest{Name: "order:123", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute, Owner: "w7"}
	}
	first := ask()
	grant, err := a.Acquire(ctx, first)
	fmt.Println(grant.Token, err)

	_, err = b.Acquire(ctx, ask())
	fmt.Println(errors.Is(err, backend.ErrHeld))

	err = a.Release(ctx, backend.ReleaseRequest{Name: first.Name, Lease: first.Lease})
	fmt.Println(err)

	grant, err = b.Acquire(ctx, ask())
	fmt.Println(grant.Token, err)
	// Output:
	// 1 <nil>
	// true
	// <nil>
	// 2 <nil>
}
