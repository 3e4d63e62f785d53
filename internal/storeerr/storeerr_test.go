package storeerr_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/storeerr"
)

func TestIsKind(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		backend.ErrLost, backend.ErrClosed, &backend.InvalidError{}, &backend.HeldError{}, &backend.UnavailableError{}, &backend.QuarantineError{},
		fmt.Errorf("watch: %w", backend.ErrUnsupported), backend.ErrSessionLost,
	} {
		if !storeerr.IsKind(err) {
			t.Errorf("%v is of package backend", err)
		}
	}
	for _, err := range []error{nil, context.Canceled, errors.New("refused")} {
		if storeerr.IsKind(err) {
			t.Errorf("%v is not of package backend", err)
		}
	}
}

func TestCause(t *testing.T) {
	t.Parallel()
	failed, reason := errors.New("refused"), errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := storeerr.Cause(ctx, failed); !errors.Is(err, failed) {
		t.Errorf("%v, while the context lives", err)
	}
	cancel(reason)
	if err := storeerr.Cause(ctx, failed); !errors.Is(err, reason) || !errors.Is(err, context.Canceled) || errors.Is(err, failed) {
		t.Errorf("%v; want the cause of the context, and its Err", err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Nanosecond)
	defer stop()
	<-ctx.Done()
	if err := storeerr.Cause(ctx, failed); err.Error() != context.DeadlineExceeded.Error() {
		t.Errorf("%q has its Err twice", err)
	}
}
