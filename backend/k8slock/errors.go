package k8slock

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/holdfast-io/holdfast/backend"
)

// The operations, for errors.
const (
	opOpen    = "open session"
	opEnd     = "end session"
	opRenew   = "renew"
	opAcquire = "acquire"
	opRelease = "release"
	opInspect = "inspect"
	opList    = "list"
	opBreak   = "break"
	opWatch   = "watch"
)

// fail maps an error to the kinds of package backend. changes is set if the request would have
// changed something: then it may have worked, unless the API server reports that it did not.
func (b *Backend) fail(ctx context.Context, op string, err error, changes bool) error {
	switch {
	case err == nil:
		return nil
	case b.base.Err() != nil, errors.Is(context.Cause(ctx), backend.ErrClosed), errors.Is(err, backend.ErrClosed):
		// This includes a call in progress that got another error first.
		return backend.ErrClosed
	case isKind(err):
		return err
	}
	u := &backend.UnavailableError{Backend: name, Op: op, MayHold: changes && !refused(err), Err: err}
	if s, ok := errors.AsType[*statusError](err); ok {
		u.RetryAfter = s.retryAfter
	}
	if ctx.Err() != nil {
		u.Err = context.Cause(ctx)
		if !errors.Is(u.Err, ctx.Err()) {
			u.Err = fmt.Errorf("%w (%w)", u.Err, ctx.Err())
		}
	}
	return u
}

// isKind reports whether err is one of the errors of package backend.
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

// refused reports whether nothing was done: the API server answered with a 4xx, or nothing was
// sent. It answers 408 and 429 before it begins.
func refused(err error) bool {
	s, ok := errors.AsType[*statusError](err)
	return ok && s.code < http.StatusInternalServerError || errors.Is(err, errFull)
}
