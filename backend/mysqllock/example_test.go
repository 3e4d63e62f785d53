package mysqllock_test

import (
	"context"
	"fmt"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
)

// (There is no output to compare: the example is compiled, and the tests run the same
// against a real server.)
func Example() { //nolint:testableexamples // it needs a server at a known place
	ctx := context.Background()
	b, err := mysqllock.Open(ctx, "mysql://app:secret@db.example.org/app?tls=true", nil)
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
