// Package failure tells the errors of package backend from those of a store's client library.
package failure

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-io/holdfast/backend"
)

// Of returns true and the error of a call as its caller gets it, if that is known: nil, an error of
// package backend, or backend.ErrClosed once life has ended. Otherwise it returns false and the cause
// of a *backend.UnavailableError: err, or why ctx has ended.
func Of(ctx, life context.Context, err error) (bool, error) {
	switch {
	case err == nil:
		return true, nil
	case life.Err() != nil, errors.Is(context.Cause(ctx), backend.ErrClosed), errors.Is(err, backend.ErrClosed):
		// This includes a call in progress that got another error first.
		return true, backend.ErrClosed
	case IsKind(err):
		return true, err
	case ctx.Err() != nil:
		return false, Cause(ctx)
	}
	return false, err
}

// Cause returns an error that is both the cause of ctx, which has ended, and its Err.
func Cause(ctx context.Context) error {
	err := context.Cause(ctx)
	if !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w (%w)", err, ctx.Err())
	}
	return err
}

// IsKind reports whether err is one of the errors of package backend.
func IsKind(err error) bool {
	for _, kind := range []error{
		backend.ErrHeld, backend.ErrLost, backend.ErrSessionLost, backend.ErrInvalid, backend.ErrUnsupported, backend.ErrUnavailable,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}
