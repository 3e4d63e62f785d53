package zklock

import (
	"context"
	"errors"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// below is the right that a user needs of the nodes that Holdfast made.
const below = "to create, read, write and delete nodes (crwd) below "

// fail maps an error of the client library to the kinds of package backend. changes is set if the
// request would have changed something: then it may have worked, unless it is certain that it did
// not.
func (b *Backend) fail(ctx context.Context, op string, err error, changes bool) error {
	mayHold := changes && !refused(err)
	if needsSession(op) && (errors.Is(err, zk.ErrSessionExpired) || errors.Is(err, zk.ErrSessionMoved)) && !connect.IsKind(err) {
		err = backend.ErrSessionLost
	}
	known, err := connect.ErrorOf(ctx, b.sessions.Base(), err)
	if known {
		return err
	}
	if errors.Is(err, zk.ErrNoAuth) {
		err = connect.Lacks(name, below+b.cfg.Path, err)
	}
	return &backend.UnavailableError{Backend: name, Op: op, MayHold: mayHold, Err: connect.Refused(name, err, remedy(err))}
}

// remedy returns what to change where the ensemble refuses this client until somebody does, or "".
func remedy(err error) string {
	if errors.Is(err, zk.ErrAuthFailed) {
		return "correct the user and the password"
	}
	return ""
}

// needsSession reports whether the operation is done for a session of the contract, so that the end
// of the ZooKeeper session is the loss of that. The others may use the link of no session, and the
// outcome of a release is not known when its link ends.
func needsSession(op string) bool { return op == opOpen || op == opRenew || op == opAcquire }

// refused reports whether it is certain that the request changed nothing.
func refused(err error) bool {
	if _, ok := errors.AsType[*unsent](err); ok {
		return true
	}
	if _, ok := errors.AsType[*fullError](err); ok {
		return true
	}
	return errors.Is(err, zk.ErrNoServer) || errors.Is(err, zk.ErrAuthFailed) || denied(err)
}

// denied reports whether the ensemble has answered that it does not execute the request, and the
// session lives on.
func denied(err error) bool {
	sure := []error{zk.ErrNoAuth, zk.ErrInvalidACL, zk.ErrNoNode, zk.ErrNodeExists, zk.ErrBadArguments, zk.ErrNoChildrenForEphemerals}
	return slices.ContainsFunc(sure, func(e error) bool { return errors.Is(err, e) })
}
