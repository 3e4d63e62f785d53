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

// Begin refuses a call whose context has ended and one of a backend that is closed. Where both have happened, the call
// gets ErrClosed, which is final.
func TestBegin(t *testing.T) {
	t.Parallel()
	left := errors.New("the caller left")
	for name, x := range map[string]struct {
		leaves, closes bool
		want           error
	}{
		"neither":         {},
		"the caller left": {leaves: true, want: left},
		"it is closed":    {closes: true, want: backend.ErrClosed},
		"both":            {leaves: true, closes: true, want: backend.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, leave := context.WithCancelCause(t.Context())
			life, end := context.WithCancelCause(t.Context())
			defer leave(nil)
			defer end(nil)
			if x.leaves {
				leave(left)
			}
			if x.closes {
				end(backend.ErrClosed)
			}
			within, done, err := backend.Begin(ctx, life)
			if x.want != nil {
				if !errors.Is(err, x.want) || within != nil || done != nil {
					t.Errorf("%v, %v; want %v alone", within, err, x.want)
				}
				return
			}
			if err != nil || within.Err() != nil {
				t.Fatalf("%v, %v", err, within.Err())
			}
			end(backend.ErrClosed)
			<-within.Done()
			if cause := context.Cause(within); !errors.Is(cause, backend.ErrClosed) {
				t.Errorf("it ended with %v", cause)
			}
			done()
		})
	}
}
