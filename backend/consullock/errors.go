package consullock

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// fail maps an error of the client library to the kinds of package backend. changes is set if the
// request would have changed something: then it may have worked, unless Consul reports that it did
// not.
func (b *Backend) fail(ctx context.Context, op string, err error, changes bool) error {
	mayHold := changes && !refused(err)
	known, err := connect.ErrorOf(ctx, b.sessions.Base(), err)
	if known {
		return err
	}
	if status, ok := errors.AsType[api.StatusError](err); ok {
		err = status // without the URL that was asked
	}
	if denied(err) {
		err = connect.Lacks(name, b.rules()[0]+", or one of those for sessions", err)
	}
	return &backend.UnavailableError{Backend: name, Op: op, MayHold: mayHold, Err: connect.Refused(name, err, remedy(err))}
}

// remedy returns what to change where Consul refuses this client until somebody does, or "".
func remedy(err error) string {
	status, ok := errors.AsType[api.StatusError](err)
	switch {
	case !ok:
		return ""
	case status.Code == http.StatusUnauthorized:
		return "name a token"
	case status.Code == http.StatusForbidden && strings.Contains(status.Body, becauseUnknown):
		return "name a token that exists and has not expired"
	case status.Code == http.StatusForbidden:
		return connect.Unknown
	}
	return ""
}

// denied reports whether Consul has answered that the token lacks a right.
func denied(err error) bool {
	var status api.StatusError
	return errors.As(err, &status) && status.Code == http.StatusForbidden && strings.Contains(status.Body, becauseDenied) || isRefused(err, becauseDenied)
}

// refused reports whether it is certain that nothing was done: there was no connection, or Consul has answered
// that, with 4xx or with a refused transaction.
func refused(err error) bool {
	if _, ok := errors.AsType[*txnError](err); ok {
		return true
	}
	if connect.IsDial(err) {
		return true
	}
	const first, last = 400, 499
	var status api.StatusError
	return errors.As(err, &status) && status.Code >= first && status.Code <= last
}

// The reasons why Consul refuses a request, or an operation of a transaction, in its own words: nothing else
// distinguishes a lock that is held, or a token that does not exist, from a missing permission. A
// transaction with none of these has failed, and was not answered.
const (
	becauseAbsent  = "doesn't exist"
	becauseChanged = "failed index check"
	becauseDenied  = "Permission denied"
	becauseDelay   = "lock delay"
	becauseExists  = "\" exists"
	becauseHeld    = "lock is already held"
	becauseNode    = "Missing node registration"
	becauseOther   = "failed session check"
	becauseSession = "invalid session"
	becauseStale   = "index is stale"
	becauseUnknown = "ACL not found" // the token
)

// txnError holds the errors of a refused transaction.
type txnError struct{ errs api.TxnErrors }

func (e *txnError) Error() string {
	var texts []string
	for _, x := range e.errs {
		texts = append(texts, strconv.Itoa(x.OpIndex)+": "+x.What)
	}
	return "transaction refused: " + strings.Join(texts, "; ")
}

// isRefused reports whether err is a transaction that was refused for one of the reasons.
func isRefused(err error, reasons ...string) bool {
	e, ok := errors.AsType[*txnError](err)
	return ok && slices.ContainsFunc(e.errs, func(x *api.TxnError) bool {
		return slices.ContainsFunc(reasons, func(r string) bool { return strings.Contains(x.What, r) })
	})
}

// refusedOnly reports whether err is a transaction that was refused for that operation, and for no
// other.
func refusedOnly(err error, op int) bool {
	e, ok := errors.AsType[*txnError](err)
	return ok && !slices.ContainsFunc(e.errs, func(x *api.TxnError) bool { return x.OpIndex != op })
}
