package pglock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/pglock"
)

// (There is no output to compare: the example is compiled, and the tests run the same code
// against a real server.)
func Example() { //nolint:testableexamples // it needs a server at a known place
	ctx := context.Background()
	b, err := pglock.Open(ctx, "postgres://app@db.example.org/app?sslmode=verify-full", pglock.Config{})
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

// PostgreSQL's own advisory locks: the server frees them the moment their connection ends.
func ExampleAdvisory() { //nolint:testableexamples // it needs a server at a known place
	ctx := context.Background()
	b, err := pglock.OpenAdvisory(ctx, "postgres+advisory://app@db.example.org/app?sslmode=verify-full", pglock.AdvisoryConfig{})
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
	_, err := pglock.Open(context.Background(), "postgres://app:secret@db.example.org/app?prefx=shop", pglock.Config{})
	if invalid, ok := errors.AsType[*backend.InvalidError](err); ok {
		fmt.Println(invalid.Field, invalid.Value)
	}
	// Output: url "prefx"
}
