package zklock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/zklock"
)

// (There is no output to compare: the example is compiled, and the tests run the same
// against a real ensemble.)
func Example() { //nolint:testableexamples // it needs an ensemble at a known place
	ctx := context.Background()
	b, err := zklock.New(zklock.Config{Servers: []string{"zk1:2181", "zk2:2181", "zk3:2181"}})
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

// An invalid URL is refused before anything is sent. The error names the fault.
func ExampleOpen() {
	_, err := zklock.Open(context.Background(), "zookeeper://zk1,zk2,zk3/locks?prefx=shop", zklock.Config{})
	if invalid, ok := errors.AsType[*backend.InvalidError](err); ok {
		fmt.Println(invalid.Field, invalid.Value)
	}
	// Output: url "prefx"
}
