package k8slock

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
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
	if unsent, ok := errors.AsType[*unsentError](err); ok && !errors.Is(err, backend.ErrUnavailable) { // else it was mapped, as a part of a call
		return &backend.UnavailableError{Backend: name, Op: op, Err: unsent}
	}
	u := &backend.UnavailableError{Backend: name, Op: op, MayHold: changes && !refused(err)}
	if s, ok := errors.AsType[*statusError](err); ok {
		u.RetryAfter = s.retryAfter
	}
	known, err := connect.ErrorOf(ctx, b.base, err)
	if known {
		return err
	}
	u.Err = connect.Refused(name, lacking(err), remedy(err))
	return u
}

// lacking adds which right is missing to an answer of the API server that a right is missing. Its own
// message has the verb and the user, and nothing else distinguishes the answer from a refusal by the
// namespace, which has a quota or is being deleted.
func lacking(err error) error {
	s, ok := errors.AsType[*statusError](err)
	if !ok || s.code != http.StatusForbidden {
		return err
	}
	if _, after, found := strings.Cut(s.message, " cannot "); found {
		if verb, _, found := strings.Cut(after, " resource "); found {
			return connect.Lacks(name, "to "+verb+" leases", err)
		}
	}
	return err
}

// remedy returns what to change where the API server refuses this client until that is changed, or "".
func remedy(err error) string {
	if s, ok := errors.AsType[*statusError](err); ok {
		switch s.code {
		case http.StatusUnauthorized:
			return "correct the credentials of the kubeconfig, or of the service account"
		case http.StatusForbidden:
			return connect.Unknown
		}
	}
	return ""
}

// refused reports whether nothing was done: the API server answered with a 4xx, or nothing was
// sent. It answers 408 and 429 before it begins.
func refused(err error) bool {
	s, ok := errors.AsType[*statusError](err)
	return ok && s.code < http.StatusInternalServerError || errors.Is(err, errFull)
}
