package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

// Wait bounds the time in the queue.
func ExampleWait() {
	ctx := context.Background()
	store := memlock.NewStore()
	mine, theirs := store.Open(), store.Open()
	defer mine.Close()
	defer theirs.Close()
	a, _ := holdfast.New(mine, holdfast.Config{})
	defer a.Close(ctx)
	b, _ := holdfast.New(theirs, holdfast.Config{})
	defer b.Close(ctx)

	lock, _ := b.Acquire(ctx, "report")
	defer lock.Release(ctx)
	_, err := a.Acquire(ctx, "report", holdfast.Wait(10*time.Millisecond))
	fmt.Println(errors.Is(err, holdfast.ErrHeld))
	// Output: true
}

// Readers share the lock. A writer acquires it without Shared, and excludes them all.
func ExampleShared() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{})
	defer locks.Close(ctx)

	first, _ := locks.Acquire(ctx, "prices", holdfast.Shared())
	second, _ := locks.Acquire(ctx, "prices", holdfast.Shared())
	fmt.Println("readers:", first.IsShared(), second.IsShared())
	_, err := locks.TryAcquire(ctx, "prices")
	fmt.Println("a writer beside them:", !errors.Is(err, holdfast.ErrHeld))
	_, _ = first.Release(ctx), second.Release(ctx)
	_, err = locks.TryAcquire(ctx, "prices")
	fmt.Println("a writer after them:", err == nil)
	// Output:
	// readers: true true
	// a writer beside them: false
	// a writer after them: true
}

// A job takes as much of a semaphore as it needs.
func ExamplePermits() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{})
	defer locks.Close(ctx)

	for _, gigabytes := range []int{7, 4, 3} {
		_, err := locks.TryAcquire(ctx, "memory", holdfast.Limit(10), holdfast.Permits(gigabytes))
		fmt.Println(gigabytes, err == nil)
	}
	// Output:
	// 7 true
	// 4 false
	// 3 true
}

// Several machines start the same job at the same time by their clocks. The lock is held for an hour, also if the
// job takes a second, so that no other machine runs it again.
func ExampleAtLeast() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{})
	defer locks.Close(ctx)

	err := locks.Do(ctx, "nightly", func(context.Context, *holdfast.Lock) error { return nil }, holdfast.AtLeast(time.Hour))
	fmt.Println(err)
	_, err = locks.TryAcquire(ctx, "nightly")
	fmt.Println(errors.Is(err, holdfast.ErrHeld))
	// Output:
	// <nil>
	// true
}

// AtMost ends the lock of a holder that hangs.
func ExampleAtMost() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{})
	defer locks.Close(ctx)

	err := locks.Do(ctx, "report", func(ctx context.Context, _ *holdfast.Lock) error {
		<-ctx.Done() // it hangs
		return ctx.Err()
	}, holdfast.AtMost(100*time.Millisecond))
	if lost, ok := errors.AsType[*holdfast.LostError](err); ok {
		fmt.Println("lost:", lost.Cause)
	}
	// Output: lost: at_most
}

// A function that locks is called under the same lock: the context says so, and Reentrant allows it.
func ExampleReentrant() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{})
	defer locks.Close(ctx)

	err := locks.Do(ctx, "account/7", func(ctx context.Context, outer *holdfast.Lock) error {
		_, err := locks.Acquire(ctx, "account/7")
		fmt.Println("deadlock:", errors.Is(err, holdfast.ErrDeadlock))
		return locks.Do(ctx, "account/7", func(_ context.Context, inner *holdfast.Lock) error {
			fmt.Println("the same lease:", inner.Token() == outer.Token())
			return nil
		}, holdfast.Reentrant())
	})
	fmt.Println(err)
	// Output:
	// deadlock: true
	// the same lease: true
	// <nil>
}
