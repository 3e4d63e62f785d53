package embedded_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/server/embedded"
)

func ExampleStart() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	node, err := embedded.Start(ctx, embedded.Config{DataDir: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = node.Close() }()
	b, err := etcdlock.New(node.Client(), etcdlock.Config{MinTTL: embedded.MinTTL})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = b.Close() }()
	grant, err := b.Acquire(ctx, backend.AcquireRequest{Name: "order:1", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute})
	fmt.Println(grant.Token > 0, err)
	// Output: true <nil>
}
