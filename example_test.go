package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

func Example() {
	ctx := context.Background()
	b := memlock.New() // or redislock.New(client, ...), or open.URL(ctx, "etcd://...")
	defer b.Close()
	locks, err := holdfast.New(b, holdfast.Config{Owner: "worker-7"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "order:123")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)
	fmt.Println(lock.State(), "with token", lock.Token())
	// Output: held with token 1
}

// Do is the shortest way: the context ends when the lock is lost, and the lock is released when the
// function has returned.
func ExampleClient_Do() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{})
	defer locks.Close(ctx)

	err := locks.Do(ctx, "order:123", func(ctx context.Context, lock *holdfast.Lock) error {
		// Pass the token to the resource, and let it refuse a smaller one.
		fmt.Println("charging with token", lock.Token())
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// charging with token 1
	// <nil>
}

// The error for a lock that is not free names the holder.
func ExampleClient_TryAcquire() {
	ctx := context.Background()
	store := memlock.NewStore()
	mine, theirs := store.Open(), store.Open()
	defer mine.Close()
	defer theirs.Close()
	a, _ := holdfast.New(mine, holdfast.Config{Owner: "a"})
	defer a.Close(ctx)
	b, _ := holdfast.New(theirs, holdfast.Config{Owner: "b"})
	defer b.Close(ctx)

	lock, _ := b.Acquire(ctx, "report", holdfast.Note("nightly"))
	defer lock.Release(ctx)

	_, err := a.TryAcquire(ctx, "report")
	if held, ok := errors.AsType[*holdfast.HeldError](err); ok {
		h := held.Holders[0]
		fmt.Printf("held by %s (%s), token %d\n", h.Owner, h.Note, h.Token)
	}
	// Output: held by b (nightly), token 1
}

// A semaphore: at most three holders at the same time.
func ExampleLimit() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{})
	defer locks.Close(ctx)

	for i := range 4 {
		_, err := locks.TryAcquire(ctx, "downloads", holdfast.Limit(3))
		fmt.Println(i+1, err == nil)
	}
	// Output:
	// 1 true
	// 2 true
	// 3 true
	// 4 false
}

// A reservation ends by itself, and outlives the process that made it. Another process can take it
// over.
func ExampleClient_Resume() {
	ctx := context.Background()
	store := memlock.NewStore()
	one, two := store.Open(), store.Open()
	defer one.Close()
	defer two.Close()
	a, _ := holdfast.New(one, holdfast.Config{})
	lock, _ := a.Acquire(ctx, "flat-12", holdfast.NoRenew(), holdfast.TTL(2*time.Hour))
	lease, _ := lock.Detach()
	_ = a.Close(ctx)

	b, _ := holdfast.New(two, holdfast.Config{})
	defer b.Close(ctx)
	again, err := b.Resume(ctx, lease)
	fmt.Println(again.Token() == lock.Token(), err)
	// Output: true <nil>
}

// Every caller acquires several locks in the same order, so that callers never wait for each other
// in a circle.
func ExampleClient_AcquireAll() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{})
	defer locks.Close(ctx)

	both, err := locks.AcquireAll(ctx, []string{"user:7", "account:3"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer both.Release(ctx)
	for _, l := range both {
		fmt.Println(l.Name())
	}
	// Output:
	// account:3
	// user:7
}

// All reads page by page, as far as the loop goes.
func ExampleClient_All() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{Owner: "worker-7"})
	defer locks.Close(ctx)
	_, _ = locks.AcquireAll(ctx, []string{"order:1", "order:2", "user:7"})

	for info, err := range locks.All(ctx, "order:") {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(info.Name, "is held by", info.Holders[0].Owner)
	}
	// Output:
	// order:1 is held by worker-7
	// order:2 is held by worker-7
}

// A hook gets the values of the context of the call that it tells of, such as a trace. It may take its
// time: nothing waits for it but Close.
func ExampleHooks() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{Hooks: &holdfast.Hooks{
		Acquired: func(_ context.Context, e holdfast.AcquiredEvent) { fmt.Println("acquired", e.Lock.Name) },
		Released: func(_ context.Context, e holdfast.ReleasedEvent) { fmt.Println("released", e.Lock.Name) },
	}})
	_ = locks.Do(ctx, "order:123", func(context.Context, *holdfast.Lock) error { return nil })
	_ = locks.Close(ctx)
	// Output:
	// acquired order:123
	// released order:123
}
