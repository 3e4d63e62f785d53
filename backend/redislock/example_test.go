package redislock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
)

// A program passes the client that it has already. (There is no output to compare: the
// example is compiled, and the tests run the same against a real server.)
func Example() { //nolint:testableexamples // it needs a server at a known place
	ctx := context.Background()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"127.0.0.1:6379"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	b, err := redislock.New(client, redislock.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	locks, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx)

	err = locks.Do(ctx, "order:123", func(ctx context.Context, lock *holdfast.Lock) error {
		fmt.Println("token", lock.Token())
		return ctx.Err()
	})
	fmt.Println(err)
}

// The tests of a program start a server of their own, which is new and holds nothing. They
// set NoQuarantine, so that the first lock is granted immediately; in a URL it is
// ?quarantine=off. No other program should: it would grant a lock twice after a server lost
// its data. (There is no output to compare: the tests of this package do the same.)
func Example_testing() { //nolint:testableexamples // it needs a server at a known place
	ctx := context.Background()
	b, err := redislock.Open(ctx, "redis://127.0.0.1:6379", redislock.Config{Quarantine: redislock.NoQuarantine})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	locks, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx)
	lock, err := locks.Acquire(ctx, "order:123", holdfast.Wait(0))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lock.Release(ctx))
}

// An invalid URL is refused before anything is sent. The error names the fault, but not the password in the URL.
func ExampleOpen() {
	_, err := redislock.Open(context.Background(), "redis://:secret@127.0.0.1:6379?prefx=shop", redislock.Config{})
	if invalid, ok := errors.AsType[*backend.InvalidError](err); ok {
		fmt.Println(invalid.Field, invalid.Value)
	}
	// Output: url "prefx"
}
