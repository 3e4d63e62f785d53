package etcdlock

import (
	"context"
	"errors"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// errStream is the cause of an *UnavailableError of Watch when etcd closed the stream without a
// reason.
var errStream = errors.New("the watch stream ended")

// fail maps an error of a request to etcd. changes is set if the request would have changed
// something: then it may have worked, unless etcd reports that it did not.
//
// Errors: ErrClosed if the backend was closed in the meantime; an error that is already of package
// backend as it is; otherwise *UnavailableError, with ctx's cause if ctx has ended.
func fail(ctx context.Context, op string, err error, changes bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), backend.ErrClosed):
		return backend.ErrClosed
	case connect.IsKind(err):
		return err
	}
	if none, ok := errors.AsType[*connect.UnconnectedError](err); ok {
		return &backend.UnavailableError{Backend: name, Op: op, MayHold: changes, Err: none}
	}
	cause := plain(connect.Cause(ctx, err))
	if is(err, rpctypes.ErrPermissionDenied) {
		cause = connect.Lacks(name, "to read and write the keys below its prefix", cause)
	}
	return &backend.UnavailableError{Backend: name, Op: op, MayHold: changes && !refused(err), Err: connect.Refused(name, cause, remedy(err))}
}

// remedy returns what to change where etcd refuses this client until that is changed, or "".
func remedy(err error) string {
	switch s, _ := status.FromError(err); {
	case is(err, rpctypes.ErrUserEmpty):
		return "name a user and a password"
	case is(err, rpctypes.ErrAuthFailed), s.Code() == codes.Unauthenticated && !is(err, rpctypes.ErrInvalidAuthToken):
		return "correct the user and the password"
	case is(err, rpctypes.ErrPermissionNotGranted):
		return "grant the user the keys of the prefix, to read and to write"
	case is(err, rpctypes.ErrAuthNotEnabled):
		return "name no user, or enable authentication in etcd"
	}
	return ""
}

// final reports whether err is an answer that a retry would not change. A nil error is final too.
func final(err error) bool {
	return err == nil || connect.IsKind(err) && !errors.Is(err, backend.ErrUnavailable)
}

// denied reports whether etcd refuses for want of a right. An earlier step of the same call may have been
// allowed, so that this is not final.
func denied(err error) bool { return errors.Is(err, backend.ErrRefused) }

// errUnsent marks a request that was never sent.
var errUnsent = errors.New("not sent")

// refused reports whether it is certain that the request changed nothing.
func refused(err error) bool {
	if errors.Is(err, errUnsent) || errors.Is(err, clientv3.ErrNoAvailableEndpoints) {
		return true
	}
	// ErrNoSpace is not one of them: the member that first finds that there is no space executes
	// the request, and reports the error then (quotaApplierV3 in etcd's apply package).
	if is(err, rpctypes.ErrTooManyRequests) {
		return true
	}
	s, _ := status.FromError(err)
	code := s.Code()
	if own, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code = own.Code()
	}
	never := []codes.Code{
		codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.Unimplemented,
		codes.NotFound, codes.OutOfRange, codes.FailedPrecondition, codes.DataLoss,
	}
	if slices.Contains(never, code) {
		return true
	}
	if s.Code() != codes.Unavailable {
		return false
	}
	for _, unsent := range []string{"Error while dialing", "no address available", "no connection available"} {
		if strings.Contains(s.Message(), unsent) {
			return true
		}
	}
	return false
}

// is compares an error of etcd, which arrives as it is or as a gRPC status.
func is(err, want error) bool {
	return err != nil && (errors.Is(err, want) || errors.Is(rpctypes.Error(err), want))
}

func leaseGone(err error) bool { return is(err, rpctypes.ErrLeaseNotFound) }

func noSpace(err error) bool { return is(err, rpctypes.ErrNoSpace) }

// plain drops what gRPC puts around a message.
func plain(err error) error {
	if s, ok := status.FromError(err); ok && s.Code() != codes.Unknown && s.Code() != codes.OK {
		return &rpcError{text: s.Message(), err: err}
	}
	return err
}

type rpcError struct {
	text string
	err  error
}

func (e *rpcError) Error() string { return e.text }
func (e *rpcError) Unwrap() error { return e.err }

// mayHold reports whether the request behind the error may have worked.
func mayHold(err error) bool {
	var away *backend.UnavailableError
	return err != nil && (!errors.As(err, &away) || away.MayHold)
}
