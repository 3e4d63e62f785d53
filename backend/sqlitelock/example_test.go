package sqlitelock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
)

// Two processes of one host share a file. Here they are two backend values: a lock that one holds
// is refused to the other.
func Example() {
	if err := example(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// nightly-report is held by "first"
	// nightly-report is free again
}

func example(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "locks.db")

	first, err := sqlitelock.Open(ctx, path, sqlitelock.Config{})
	if err != nil {
		return err
	}
	defer func() { _ = first.Close() }()
	second, err := sqlitelock.Open(ctx, "sqlite://"+path, sqlitelock.Config{}) // the same file, as a URL
	if err != nil {
		return err
	}
	defer func() { _ = second.Close() }()

	const name = "nightly-report"
	mine := backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute, Owner: "first"}
	if _, err := first.Acquire(ctx, mine); err != nil {
		return err
	}

	theirs := backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute, Owner: "second"}
	_, err = second.Acquire(ctx, theirs)
	if held := (*backend.HeldError)(nil); errors.As(err, &held) {
		fmt.Printf("%s is held by %q\n", held.Name, held.Holders[0].Owner)
	}

	if err := first.Release(ctx, backend.ReleaseRequest{Name: name, Lease: mine.Lease}); err != nil {
		return err
	}
	if _, err := second.Acquire(ctx, theirs); err != nil {
		return err
	}
	fmt.Println(name, "is free again")
	return second.Release(ctx, backend.ReleaseRequest{Name: name, Lease: theirs.Lease})
}
