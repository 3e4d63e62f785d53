// Package storeerr has what all backends do when they turn an error of a client library into one of package
// backend.
package storeerr

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-io/holdfast/backend"
)

// IsKind reports whether err is one of the errors of package backend already.
func IsKind(err error) bool {
	for _, kind := range []error{
		backend.ErrHeld, backend.ErrLost, backend.ErrSessionLost, backend.ErrInvalid,
		backend.ErrUnsupported, backend.ErrClosed, backend.ErrUnavailable,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// Cause returns why a call failed: with the cause of ctx and its Err, if ctx has ended, and otherwise with err.
func Cause(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	cause := context.Cause(ctx)
	if !errors.Is(cause, ctx.Err()) {
		cause = fmt.Errorf("%w (%w)", cause, ctx.Err())
	}
	return cause
}
