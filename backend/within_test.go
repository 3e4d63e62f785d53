package backend_test

import (
	"context"
	"errors"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
)

// A call's context ends with the backend. A context made after the backend's end has already ended,
// and the backend keeps nothing of it.
func TestWithin(t *testing.T) {
	t.Parallel()
	life, end := context.WithCancelCause(t.Context())
	type key struct{}
	before, leave := backend.Within(context.WithValue(t.Context(), key{}, "value"), life)
	defer leave()
	if before.Err() != nil || before.Value(key{}) != "value" {
		t.Errorf("%v, %v", before.Err(), before.Value(key{}))
	}
	left, leaveIt := backend.Within(t.Context(), life)
	leaveIt()
	end(backend.ErrClosed)
	<-before.Done()
	if err := context.Cause(before); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("ended: %v", err)
	}
	if err := context.Cause(left); !errors.Is(err, context.Canceled) {
		t.Errorf("left: %v", err)
	}
	for range 1000 { // every time, and not only most of the time
		after, leave := backend.Within(t.Context(), life)
		if err := context.Cause(after); !errors.Is(err, backend.ErrClosed) {
			t.Fatalf("after the end: %v", err)
		}
		leave()
	}
}
