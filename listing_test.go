package holdfast_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

// All goes through all pages, ends where the loop does, and reports an error last.
func TestAll(t *testing.T) {
	t.Parallel()
	f, _ := newFaults(t)
	c := newClient(t, f, holdfast.Config{})
	const locks = 2*backend.MaxListLimit + 1
	for i := range locks {
		mustAcquire(t, c, fmt.Sprintf("n%06d", i))
	}
	n := 0
	for info, err := range c.All(t.Context(), "n") {
		if want := fmt.Sprintf("n%06d", n); err != nil || info.Name != want {
			t.Fatalf("%s, %v; want %s", info.Name, err, want)
		}
		n++
	}
	if n != locks {
		t.Errorf("%d of %d locks", n, locks)
	}
	for _, err := range c.All(t.Context(), "") {
		if err != nil {
			t.Error(err)
		}
		break
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	n = 0
	for _, err := range c.All(t.Context(), "") {
		if n++; !errors.Is(err, holdfast.ErrClosed) {
			t.Errorf("the client is closed: %v", err)
		}
	}
	if n != 1 {
		t.Errorf("%d errors", n)
	}
}
