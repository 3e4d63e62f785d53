package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

var (
	// ErrNoQuorum means that too few nodes answered. It is wrapped in a
	// *backend.UnavailableError, with the errors of the nodes.
	ErrNoQuorum = errors.New("too few nodes answered")
	// ErrClock means that the clock of this process, or the counter of the lock, is more than
	// an hour ahead of the clocks of the nodes. It is wrapped in a *backend.UnavailableError.
	ErrClock = errors.New("the clocks are more than an hour apart")
	// ErrForeignData means that a key of Holdfast holds data that Holdfast did not write, or
	// that another version wrote. It is wrapped in a *backend.UnavailableError.
	ErrForeignData = errors.New("a key holds data that this version of Holdfast did not write")

	// errContended means that several clients split the votes, so that none holds the lock.
	errContended = errors.New("several clients split the votes: no client holds the lock")

	errDown   = errors.New("the node does not answer")
	errTokens = errors.New("other clients kept raising the token")
)

const (
	opOpen    = "open"
	opAcquire = "acquire"
	opRenew   = "renew"
	opRelease = "release"
	opInspect = "inspect"
	opList    = "list"
	opBreak   = "break"
	opReady   = "ready"
	opBack    = "back"
)

// toKind maps every error of a call to a kind of package backend. No other function does.
// mayHold says that the request may have worked.
func toKind(ctx context.Context, op string, err error, mayHold bool) error {
	var own *backend.UnavailableError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, backend.ErrClosed):
		return backend.ErrClosed
	case errors.As(err, &own), isKind(err):
		return err
	}
	return &backend.UnavailableError{Backend: backendName, Op: op, MayHold: mayHold, Err: connect.Cause(ctx, err)}
}

// isKind reports whether err is one of the answers of package backend.
func isKind(err error) bool {
	for _, kind := range []error{backend.ErrHeld, backend.ErrLost, backend.ErrInvalid, backend.ErrUnsupported} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// noQuorum returns the error of a call that too few nodes answered. errs has the errors of
// the others, by node; nil for a node that answered. It is ErrRefused if there is no quorum without
// nodes that refuse this client.
func (b *Backend) noQuorum(answered, needed int, errs []error) error {
	all := []error{fmt.Errorf("%w: %d, and %d are needed", ErrNoQuorum, answered, needed)}
	refusing, why := 0, backend.RefusedError{Backend: backendName}
	for i, err := range errs {
		if err == nil {
			continue
		}
		all = append(all, fmt.Errorf("node %d: %w", i+1, err))
		if no, ok := errors.AsType[*backend.RefusedError](b.nodes[i].refusal(err)); ok {
			refusing++
			why.Reason, why.Remedy = no.Reason, no.Remedy
		}
	}
	joined := errors.Join(all...)
	if refusing > len(errs)-needed {
		why.Err = joined
		return &why
	}
	return joined
}

// refusal returns the error of the node, as a *backend.RefusedError if the node refuses this client.
func (n *node) refusal(err error) error {
	server, ok := errors.AsType[*serverError](err)
	switch {
	case ok && server.Missing() != "":
		return connect.Lacks(backendName, n.named(server.Missing()), err)
	case ok:
		return connect.Refused(backendName, err, server.Remedy())
	}
	return connect.Refused(backendName, err, "")
}

// inQuarantine returns the error of a call that too few of n nodes vote on. unripe has for
// each node that does not vote how long it will not, and lacking is how many of them are
// needed.
func inQuarantine(op string, n int, unripe []time.Duration, lacking int, mayHold bool) *backend.UnavailableError {
	slices.Sort(unripe)
	left := max(unripe[lacking-1], time.Millisecond)
	e := &backend.QuarantineError{
		Backend: backendName, Left: left, Until: time.Now().Add(left), Parameter: "quarantine=off",
		Reason: fmt.Sprintf("%d of the %d nodes are new or lost data", len(unripe), n),
	}
	return e.Unavailable(backendName, op, mayHold)
}

// unsent reports whether the node behind the error has executed nothing.
func unsent(err error) bool {
	if _, ok := errors.AsType[*unsentError](err); ok || connect.IsDial(err) {
		return true
	}
	server, ok := errors.AsType[*serverError](err)
	return ok && server.Unexecuted()
}
