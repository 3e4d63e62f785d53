package k8slock_test

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/k8slock"
)

// The program has a rest.Config of client-go. (There is no output to compare: the examples are
// compiled, and the tests run the same against a real server.)
func Example() { //nolint:testableexamples // it needs a server at a known place
	ctx := context.Background()
	config, err := rest.InClusterConfig()
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := k8slock.NewForConfig(config, k8slock.Config{Namespace: "team"})
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

// The program has an HTTP client that authenticates itself, such as client-go makes. Through kubectl
// proxy, which listens at http://127.0.0.1:8001, http.DefaultClient will do.
func ExampleNew() { //nolint:testableexamples // it needs a server at a known place
	config := &rest.Config{Host: "https://10.0.0.1:443", BearerTokenFile: "/run/token"}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := k8slock.New(client, config.Host, k8slock.Config{Namespace: "team"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.CloseIdleConnections() // Close does not close the client
	defer b.Close()
}

// An invalid URL yields an error that names the fault.
func ExampleOpen() {
	_, err := k8slock.Open(context.Background(), "kubernetes://team?contxt=prod", k8slock.Config{})
	fmt.Println(err)
	// Output: url "contxt": must be one of the parameters kubeconfig, context, foreign
}
