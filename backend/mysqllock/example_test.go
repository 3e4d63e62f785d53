package mysqllock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
)

// (There is no output to compare: the example is compiled, and the tests run the same code
// against a real server.)
func Example() { //nolint:testableexamples // it needs a server at a known place
	ctx := context.Background()
	b, err := mysqllock.Open(ctx, "mysql://app:secret@db.example.org/app?tls=true", mysqllock.Config{})
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

// The servers' own user locks (GET_LOCK): they are free the moment their connection ends.
func ExampleUserLocks() { //nolint:testableexamples // it needs a server at a known place
	ctx := context.Background()
	b, err := mysqllock.OpenUserLocks(ctx, "mysql+getlock://app:secret@db.example.org/app?tls=true", mysqllock.UserLocksConfig{})
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

	lock, err := locks.TryAcquire(ctx, "nightly-report")
	var held *holdfast.HeldError
	switch {
	case errors.As(err, &held):
		fmt.Println("elsewhere:", held)
		return
	case err != nil:
		fmt.Println(err)
		return
	}
	// The work uses lock.Context(), which also ends immediately when the connection does.
	fmt.Println("token", lock.Token(), lock.Context().Err())
	fmt.Println(lock.Release(ctx))
}

// An invalid URL is refused before anything is sent. The error names the fault, but not the password in the URL.
func ExampleOpen() {
	_, err := mysqllock.Open(context.Background(), "mysql://app:secret@db.example.org/app?prefx=shop", mysqllock.Config{})
	if invalid, ok := errors.AsType[*backend.InvalidError](err); ok {
		fmt.Println(invalid.Field, invalid.Value)
	}
	// Output: url "prefx"
}
