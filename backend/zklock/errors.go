package zklock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
)

// fail maps an error of the client library to the kinds of package backend. changes is set if the
// request would have changed something: then it may have worked, unless it is certain that it did
// not.
func (b *Backend) fail(ctx context.Context, op string, err error, changes bool) error {
	var own *backend.UnavailableError
	switch {
	case err == nil:
		return nil
	case b.sessions.Base().Err() != nil, errors.Is(context.Cause(ctx), backend.ErrClosed), errors.Is(err, backend.ErrClosed):
		// This includes a call in progress that got another error first.
		return backend.ErrClosed
	case errors.As(err, &own), isKind(err):
		return err
	case needsSession(op) && (errors.Is(err, zk.ErrSessionExpired) || errors.Is(err, zk.ErrSessionMoved)):
		return backend.ErrSessionLost
	}
	if ctx.Err() != nil {
		cause := context.Cause(ctx)
		if !errors.Is(cause, ctx.Err()) {
			cause = fmt.Errorf("%w (%w)", cause, ctx.Err())
		}
		return &backend.UnavailableError{Backend: name, Op: op, MayHold: changes && !refused(err), Err: cause}
	}
	return &backend.UnavailableError{Backend: name, Op: op, MayHold: changes && !refused(err), Err: err}
}

// needsSession reports whether the operation is done for a session of the contract, so that the end
// of the ZooKeeper session is the loss of that. The others may use the link of no session, and the
// outcome of a release is not known when its link ends.
func needsSession(op string) bool { return op == opOpen || op == opRenew || op == opAcquire }

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

// refused reports whether it is certain that the request changed nothing.
func refused(err error) bool {
	if _, ok := errors.AsType[*unsent](err); ok {
		return true
	}
	return errors.Is(err, zk.ErrNoServer) || errors.Is(err, zk.ErrAuthFailed) || denied(err)
}

// denied reports whether the ensemble has answered that it does not execute the request, and the
// session lives on.
func denied(err error) bool {
	for _, sure := range []error{zk.ErrNoAuth, zk.ErrInvalidACL, zk.ErrNoNode, zk.ErrNodeExists, zk.ErrBadArguments, zk.ErrNoChildrenForEphemerals} {
		if errors.Is(err, sure) {
			return true
		}
	}
	return false
}
