package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

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
	watch, stop := context.WithCancel(ctx)
	defer stop()
	err := locks.Watch(watch, "order:", func(e holdfast.Event) {
		if e.Kind == holdfast.EventWatching { // events before it may be missing
			close(watching)
			return
		}
		fmt.Println(e.Name, e.Kind, "by", e.Owner)
		if e.Kind == holdfast.EventReleased {
			stop()
		}
	})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// order:123 acquired by worker-7
	// order:123 released by worker-7
	// true
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

// BreakLease takes one holder's permit, and leaves the others theirs.
func ExampleClient_BreakLease() {
	ctx := context.Background()
	b := memlock.New()
	defer b.Close()
	locks, _ := holdfast.New(b, holdfast.Config{})
	defer locks.Close(ctx)
	for _, owner := range []string{"worker-1", "worker-2"} {
		_, _ = locks.Acquire(ctx, "downloads", holdfast.Limit(3), holdfast.Owner(owner))
	}

	info, _ := locks.Inspect(ctx, "downloads")
	_, err := locks.BreakLease(ctx, "downloads", info.Holders[0].Lease, "it hangs")
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
