package k8slock_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/k8slock"
)

// The program passes the HTTP client that its rest.Config of client-go makes; through kubectl proxy
// any will do. (There is no output to compare: the example is compiled, and the tests run the same
// against a real server.)
func Example() { //nolint:testableexamples // it needs a server at a known place
	ctx := context.Background()
	b, err := k8slock.New(http.DefaultClient, "http://127.0.0.1:8001", k8slock.Config{Namespace: "team"})
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

	err = locks.Do(ctx, "nightly-report", func(ctx context.Context, lock *holdfast.Lock) error {
		fmt.Println("token", lock.Token())
		return ctx.Err()
	})
	fmt.Println(err)
}

// An invalid URL yields an error that names the fault.
func ExampleOpen() {
	_, err := k8slock.Open(context.Background(), "kubernetes://team?contxt=prod", k8slock.Config{})
	fmt.Println(err)
	// Output: url "contxt": must be one of the parameters kubeconfig, context, foreign, skew
}
