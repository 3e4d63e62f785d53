package open_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/open"
)

// One value and one Close, for a program that keeps its store's URL in its configuration.
func ExampleClient() {
	ctx := context.Background()
	locks, err := open.Client(ctx, "memory://", holdfast.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx) // the connections too
	err = locks.Do(ctx, "order:123", func(_ context.Context, lock *holdfast.Lock) error {
		fmt.Println("token", lock.Token())
		return nil
	})
	fmt.Println(err)
	// Output:
	// token 1
	// <nil>
}

// The URL usually comes from the configuration of a program: another URL is another store.
func ExampleURL() {
	ctx := context.Background()
	b, err := open.URL(ctx, "memory://", open.Options{})
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
	lock, err := locks.Acquire(ctx, "order:123")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lock.Token(), lock.Release(ctx))
	// Output: 1 <nil>
}

// A URL with a mistake is refused before anything is sent. The error does not contain its password.
func ExampleURL_refused() {
	_, err := open.URL(context.Background(), "redis://:secret@127.0.0.1:6379?prefx=shop", open.Options{})
	if invalid, ok := errors.AsType[*backend.InvalidError](err); ok {
		fmt.Println(invalid.Field, invalid.Value)
	}
	// Output: url "prefx"
}
