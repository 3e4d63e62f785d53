package connect_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

func TestIsKind(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		backend.ErrLost, backend.ErrClosed, &backend.InvalidError{}, &backend.HeldError{}, &backend.UnavailableError{}, &backend.QuarantineError{},
		fmt.Errorf("watch: %w", backend.ErrUnsupported), backend.ErrSessionLost,
	} {
		if !connect.IsKind(err) {
			t.Errorf("%v is of package backend", err)
		}
	}
	for _, err := range []error{nil, context.Canceled, errors.New("refused")} {
		if connect.IsKind(err) {
			t.Errorf("%v is not of package backend", err)
		}
	}
}

func TestCause(t *testing.T) {
	t.Parallel()
	failed, reason := errors.New("refused"), errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := connect.Cause(ctx, failed); !errors.Is(err, failed) {
		t.Errorf("%v, while the context lives", err)
	}
	cancel(reason)
	if err := connect.Cause(ctx, failed); !errors.Is(err, reason) || !errors.Is(err, context.Canceled) || errors.Is(err, failed) {
		t.Errorf("%v; want the cause of the context, and its Err", err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Nanosecond)
	defer stop()
	<-ctx.Done()
	if err := connect.Cause(ctx, failed); err.Error() != context.DeadlineExceeded.Error() {
		t.Errorf("%q has its Err twice", err)
	}
}

var errStore, errUser = errors.New("the store is down"), errors.New("the user left")

// TestOf: what a caller gets of an error.
func TestOf(t *testing.T) {
	t.Parallel()
	live := t.Context()
	closed, end := context.WithCancelCause(live)
	end(backend.ErrClosed)
	left, leave := context.WithCancelCause(live)
	leave(errUser)
	away := &backend.UnavailableError{Backend: "x", Op: "y", Err: errStore}
	for name, tc := range map[string]struct {
		ctx, life context.Context //nolint:containedctx // of one case
		err       error
		known     bool
		want      []error
	}{
		"success":                   {live, live, nil, true, nil},
		"success of a closed store": {closed, closed, nil, true, nil},
		"the store's":               {live, live, errStore, false, []error{errStore}},
		"ours":                      {live, live, fmt.Errorf("wrapped: %w", backend.ErrLost), true, []error{backend.ErrLost}},
		"unavailable":               {live, live, away, true, []error{backend.ErrUnavailable, errStore}},
		"closed":                    {live, live, backend.ErrClosed, true, []error{backend.ErrClosed}},
		"closed in the meantime":    {live, closed, errStore, true, []error{backend.ErrClosed}},
		"closed by the context":     {closed, live, backend.ErrLost, true, []error{backend.ErrClosed}},
		"the caller left":           {left, live, errStore, false, []error{errUser, context.Canceled}},
	} {
		known, got := connect.ErrorOf(tc.ctx, tc.life, tc.err)
		if known != tc.known || len(tc.want) == 0 && got != nil {
			t.Errorf("%s: %t, %v; want %t, %v", name, known, got, tc.known, tc.want)
		}
		for _, want := range tc.want {
			if !errors.Is(got, want) {
				t.Errorf("%s: %t, %v; want %v", name, known, got, want)
			}
		}
	}
}
