//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package filelock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/examples/filelock"
)

// The client of package holdfast works on this store as on any other.
func Example() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	dir := filepath.Join(folder, "locks")
	if err := filelock.Create(dir); err != nil { // once; the other processes only open it
		fmt.Println(err)
		return
	}
	b, err := filelock.Open(dir)
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

	lock, err := locks.Acquire(ctx, "order:123", holdfast.Wait(time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = locks.TryAcquire(ctx, "order:123")
	fmt.Println(lock.Token() > 0, errors.Is(err, holdfast.ErrHeld))
	fmt.Println(lock.Release(ctx))
	// Output:
	// true true
	// <nil>
}
