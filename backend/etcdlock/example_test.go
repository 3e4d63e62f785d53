package etcdlock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast/backend/etcdlock"
)

func ExampleOpen() {
	// Nothing is sent yet: etcd need not be running.
	b, err := etcdlock.Open(context.Background(), "etcd://127.0.0.1:2379,127.0.0.1:22379?prefix=shop&timeout=3s", etcdlock.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = b.Close() }()
	fmt.Println(b.Capabilities().TokenKind, b.Capabilities().MinTTL >= time.Second)
	// Output: revision true
}

func ExampleOpen_unknownParameter() {
	_, err := etcdlock.Open(context.Background(), "etcd://127.0.0.1?prefx=shop", etcdlock.Config{})
	fmt.Println(err)
	// Output: url "prefx": must be one of the parameters prefix, timeout, min_ttl, ca, cert, key, server_name
}
