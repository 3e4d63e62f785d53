package redlock_test

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
)

// A program passes the clients that it has already, one for each server. (There is no output
// to compare: the example is compiled, and the tests run the same against real servers.)
func Example() { //nolint:testableexamples // it needs servers at known places
	ctx := context.Background()
	var clients []rueidis.Client
	for _, addr := range []string{"10.0.1.1:6379", "10.0.2.1:6379", "10.0.3.1:6379"} {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true})
		if err != nil {
			fmt.Println(err)
			return
		}
		defer client.Close()
		clients = append(clients, client)
	}
	b, err := redlock.New(clients, redlock.Config{})
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

// The error for a URL that makes no sense says what is wrong with it, and does not contain
// its password.
func ExampleOpen() {
	_, err := redlock.Open(context.Background(), "redlock://:secret@a,b?max_ttl=1m", redlock.Config{})
	fmt.Println(err)
	// Output: nodes 2: must be an odd number, 3 to 15
}

// The tests of a program start a server of their own, which is new and holds nothing. They
// set NoQuarantine, so that the first lock is granted immediately; in a URL it is
// ?quarantine=off. No other program should: it would grant a lock twice after a server lost
// its data. (There is no output to compare: the tests of this package do the same.)
func Example_testing() { //nolint:testableexamples // it needs servers at known places
	ctx := context.Background()
	b, err := redlock.Open(ctx, "redlock://127.0.0.1:6379,127.0.0.1:6380,127.0.0.1:6381", redlock.Config{NoQuarantine: true})
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
