package server_test

import (
	"context"
	"fmt"
	"net"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/server"
)

func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// A server; usually it is another process: "holdfast serve".
	srv, err := server.New(memlock.New(), server.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	served := make(chan error)
	go func() { served <- srv.Serve(ctx, ln) }()

	b, err := remotelock.Open(ctx, "holdfast://"+ln.Addr().String(), remotelock.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	locks, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	lock, err := locks.Acquire(ctx, "order:123")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held:", lock.Name(), lock.Token().Valid())
	fmt.Println("released:", lock.Release(ctx) == nil)

	if err := locks.Close(ctx); err != nil {
		fmt.Println(err)
	}
	if err := b.Close(); err != nil {
		fmt.Println(err)
	}
	cancel()
	fmt.Println("stopped:", <-served == nil)
	// Output:
	// held: order:123 true
	// released: true
	// stopped: true
}
