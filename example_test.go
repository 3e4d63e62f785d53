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

// DoAll holds several locks while the function runs, whichever order another caller names them in.
func ExampleClient_DoAll() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{})
	defer locks.Close(ctx)

	err := locks.DoAll(ctx, []string{"account:7", "account:3"}, func(_ context.Context, held holdfast.Locks) error {
		for _, l := range held {
			fmt.Println("moving money with token", l.Token(), "of", l.Name())
		}
		return nil // the context ends when one of them is lost
	})
	fmt.Println(err)
	// Output:
	// moving money with token 1 of account:3
	// moving money with token 2 of account:7
	// <nil>
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

// Metrics and traces at the same time: each hook of the first is called, and then that of the second.
func ExampleJoinHooks() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	metrics := &holdfast.Hooks{Acquired: func(context.Context, holdfast.AcquiredEvent) { fmt.Println("counted") }}
	traces := &holdfast.Hooks{Acquired: func(_ context.Context, e holdfast.AcquiredEvent) { fmt.Println("traced", e.Lock.Name) }}
	locks, _ := holdfast.New(b, holdfast.Config{Hooks: holdfast.JoinHooks(metrics, traces)})
	_, _ = locks.Acquire(ctx, "order:123")
	_ = locks.Close(ctx)
	// Output:
	// counted
	// traced order:123
}

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

// When the deadline of its context ends the wait, the error names the holder.
func ExampleClient_Acquire() {
	ctx := context.Background()
	store := memlock.NewStore()
	mine, theirs := store.Open(), store.Open()
	defer mine.Close()
	defer theirs.Close()
	a, _ := holdfast.New(mine, holdfast.Config{})
	defer a.Close(ctx)
	b, _ := holdfast.New(theirs, holdfast.Config{Owner: "worker-7"})
	defer b.Close(ctx)

	lock, _ := b.Acquire(ctx, "report")
	defer lock.Release(ctx)
	soon, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err := a.Acquire(soon, "report")
	fmt.Println(errors.Is(err, context.DeadlineExceeded), errors.Is(err, holdfast.ErrHeld))
	if held, ok := errors.AsType[*holdfast.HeldError](err); ok {
		fmt.Println("held by", held.Holders[0].Owner)
	}
	// Output:
	// true true
	// held by worker-7
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

// Extend moves the deadline of a reservation. A program that shows the deadline waits for Renewed.
func ExampleLock_Extend() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{})
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "flat-12", holdfast.NoRenew(), holdfast.TTL(time.Hour))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)
	before, renewed := lock.Deadline(), lock.Renewed()
	fmt.Println(lock.Extend(ctx, 3*time.Hour))
	<-renewed
	fmt.Println(lock.Deadline().Sub(before) > time.Hour)
	// Output:
	// <nil>
	// true
}

// Inspect shows who holds a lock and who waits for it. A free lock is no error.
func ExampleClient_Inspect() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{Owner: "worker-7"})
	defer locks.Close(ctx)
	lock, _ := locks.Acquire(ctx, "order:123", holdfast.Note("refund"))
	defer lock.Release(ctx)

	for _, name := range []string{"order:123", "order:124"} {
		info, err := locks.Inspect(ctx, name)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: %d waiters", info.Name, len(info.Waiters))
		for _, h := range info.Holders {
			fmt.Printf(", held by %s (%s), token %d", h.Owner, h.Note, h.Token)
		}
		fmt.Println()
	}
	// Output:
	// order:123: 0 waiters, held by worker-7 (refund), token 1
	// order:124: 0 waiters
}

// Watch delivers the events of all locks with a prefix, until its context ends.
func ExampleClient_Watch() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{Owner: "worker-7"})
	defer locks.Close(ctx)

	watching := make(chan struct{})
	go func() {
		<-watching
		_ = locks.Do(ctx, "order:123", func(context.Context, *holdfast.Lock) error { return nil })
	}()
	for e, err := range locks.Watch(ctx, "order:") {
		if err != nil {
			fmt.Println(err)
			return
		}
		if e.Kind == holdfast.EventWatching { // events before it may be missing
			close(watching)
			continue
		}
		fmt.Println(e.Name, e.Kind, "by", e.Owner)
		if e.Kind == holdfast.EventReleased {
			break
		}
	}
	// Output:
	// order:123 acquired by worker-7
	// order:123 released by worker-7
}

// An operator breaks a lock whose holder hangs. The holder gets the reason.
func ExampleClient_Break() {
	ctx := context.Background()
	store := memlock.NewStore()
	theirs, ours := store.Open(), store.Open()
	defer theirs.Close()
	defer ours.Close()
	worker, _ := holdfast.New(theirs, holdfast.Config{Owner: "worker-7"})
	defer worker.Close(ctx)
	operator, _ := holdfast.New(ours, holdfast.Config{Owner: "ann"})
	defer operator.Close(ctx)
	lock, _ := worker.Acquire(ctx, "report")

	res, err := operator.Break(ctx, "report", "ticket 4711")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("broken:", res.Broken[0].Owner)
	<-lock.Context().Done()
	if lost, ok := errors.AsType[*holdfast.LostError](lock.Err()); ok {
		fmt.Println("lost:", lost.Cause, "for", lost.Reason)
	}
	// Output:
	// broken: worker-7
	// lost: broken for ticket 4711
}

// WithLease takes one holder's permit, and leaves the others theirs.
func ExampleClient_Break_oneHolder() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{})
	defer locks.Close(ctx)
	for _, owner := range []string{"worker-1", "worker-2"} {
		_, _ = locks.Acquire(ctx, "downloads", holdfast.Limit(3), holdfast.Owner(owner))
	}

	info, _ := locks.Inspect(ctx, "downloads")
	_, err := locks.Break(ctx, "downloads", "it hangs", holdfast.WithLease(info.Holders[0].Lease))
	if err != nil {
		fmt.Println(err)
		return
	}
	info, _ = locks.Inspect(ctx, "downloads")
	for _, h := range info.Holders {
		fmt.Println("still held by", h.Owner)
	}
	// Output: still held by worker-2
}
