package remotelock_test

import (
	"context"
	"fmt"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/remotelock"
)

// The server is another process, "holdfast serve". New sends nothing to it; Open asks it what it
// can do. The example of package server has both sides in one program.
func Example() {
	b, err := remotelock.New("holdfasts://locks.example.org", remotelock.Config{Token: "the server's secret"})
	if err != nil {
		fmt.Println(err)
		return
	}
	locks, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("a lease lives for at most", locks.Capabilities().MaxTTL)
	if err := locks.Close(context.Background()); err != nil {
		fmt.Println(err)
	}
	if err := b.Close(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// a lease lives for at most 24h0m0s
}
