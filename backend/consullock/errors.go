package consullock

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
)

// fail maps an error of the client library to the kinds of package backend. changes says
// that the request would have changed something: then it may have worked, unless Consul
// says that it did not.
func fail(ctx context.Context, op string, err error, changes bool) error {
	var own *backend.UnavailableError
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), backend.ErrClosed), errors.Is(err, backend.ErrClosed):
		return backend.ErrClosed
	case errors.As(err, &own), isKind(err):
		return err
	}
	cause := err
	if ctx.Err() != nil {
		cause = context.Cause(ctx)
		if !errors.Is(cause, ctx.Err()) {
			cause = fmt.Errorf("%w (%w)", cause, ctx.Err())
		}
	}
	return &backend.UnavailableError{Backend: name, Op: op, MayHold: changes && !refused(err), Err: cause}
}

// isKind reports whether err is one of the answers of package backend.
func isKind(err error) bool {
	for _, kind := range []error{
		backend.ErrHeld, backend.ErrLost, backend.ErrSessionLost, backend.ErrInvalid, backend.ErrUnsupported, backend.ErrUnavailable,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// refused reports whether Consul has said that it did nothing: 4xx.
func refused(err error) bool {
	const first, last = 400, 499
	var status api.StatusError
	return errors.As(err, &status) && status.Code >= first && status.Code <= last
}
