package consullock_test

import (
	"context"
	"fmt"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/consullock"
)

// The program passes the client that it already has. (There is no output to compare: the example is
// compiled, and the tests run the same against a real server.)
func Example() { //nolint:testableexamples // it needs a server at a known place
	ctx := context.Background()
	client, err := api.NewClient(api.DefaultConfig())
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := consullock.New(client, consullock.Config{})
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

// An invalid URL yields an error that names the fault, but not the token in the URL.
func ExampleOpen() {
	_, err := consullock.Open(context.Background(), "consul://:secret@127.0.0.1:8500?min_tll=20s", consullock.Config{})
	fmt.Println(err)
	// Output: url "min_tll": must be one of the parameters dc, ns, partition, min_ttl, ca, cert, key, server_name
}
