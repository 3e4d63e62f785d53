package backend_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

// A program usually calls package holdfast. Below it, every store answers the same requests with the same
// kinds of error.
func Example() {
	ctx := context.Background()
	var b backend.Backend = memlock.New()
	defer b.Close()

	request := func() backend.AcquireRequest {
		return backend.AcquireRequest{Name: "order:123", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute, Owner: "w7"}
	}
	first := request()
	for range 2 { // a retry under the same lease ID is the same grant
		grant, err := b.Acquire(ctx, first)
		fmt.Println(grant.Token, err)
	}

	_, err := b.Acquire(ctx, request())
	if held, ok := errors.AsType[*backend.HeldError](err); ok {
		fmt.Println("held by", held.Holders[0].Owner)
	}

	_, err = b.Acquire(ctx, backend.AcquireRequest{Name: "order/../123", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute})
	fmt.Println(errors.Is(err, backend.ErrInvalid), err)
	// Output:
	// 1 <nil>
	// 1 <nil>
	// held by w7
	// true name "order/../123": must be without empty, "." or ".." segments between slashes
}

// Release reports a lease that is not held, so that its holder learns of the loss.
func ExampleBackend_release() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	request := backend.AcquireRequest{Name: "order:123", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute}
	if _, err := b.Acquire(ctx, request); err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		err := b.Release(ctx, backend.ReleaseRequest{Name: request.Name, Lease: request.Lease})
		fmt.Println(err, errors.Is(err, backend.ErrLost))
	}
	// Output:
	// <nil> false
	// lease is lost true
}
