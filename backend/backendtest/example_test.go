package backendtest_test

import (
	"context"
	"fmt"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/memlock"
)

// A test of a store calls Run. A program that is not a test runs the cases that it wants.
func ExampleCase_Run() {
	store := memlock.NewStore()
	h := backendtest.Harness{Open: func(backendtest.T) backend.Backend { return store.Open() }}
	for _, c := range backendtest.Cases() {
		if c.ID == "C5" && c.Name == "strangers-cannot-release" {
			r := c.Run(context.Background(), h)
			fmt.Println(c.Rule)
			fmt.Println(r.Passed(), r.Failures)
		}
	}
	// Output:
	// only the lease ID renews or releases; a stale one gets ErrLost and changes nothing
	// true []
}
