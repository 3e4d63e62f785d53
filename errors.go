package holdfast

import (
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/acquire"
)

// The kinds of error. Test with errors.Is. Every error that a method of this package returns is an
// *OpError around one of these, around the cause of a context that ended, or around what the
// caller's own function returned.
var (
	// ErrHeld: other clients hold the lock, or are ahead in the queue. See HeldError.
	ErrHeld = backend.ErrHeld
	// ErrLost: the lease has ended, and this is final. See LostError.
	ErrLost = backend.ErrLost
	// ErrInvalid: the request is invalid, and nothing was sent. See InvalidError.
	ErrInvalid = backend.ErrInvalid
	// ErrLimit: another limit is in force. See LimitError. It is ErrInvalid too.
	ErrLimit = backend.ErrLimit
	// ErrUnsupported: the backend cannot do this.
	ErrUnsupported = backend.ErrUnsupported
	// ErrUnavailable: the backend is unavailable. See UnavailableError.
	ErrUnavailable = backend.ErrUnavailable
	// ErrQuarantine: the backend answers but grants nothing yet, because it is new or lost data. It
	// is ErrUnavailable too. See QuarantineError.
	ErrQuarantine = backend.ErrQuarantine
	// ErrRefused: the store refuses this client until somebody changes something: a wrong password,
	// database or certificate, a missing right, an answer that is not known to pass. It is not
	// retried. It is ErrUnavailable too. See RefusedError.
	ErrRefused = backend.ErrRefused
	// ErrClosed: the client or its backend was closed.
	ErrClosed = backend.ErrClosed
	// ErrReleased: the lock was released by its holder.
	ErrReleased = errors.New("lock was released")
	// ErrDeadlock: the caller would wait for itself: it acquires with the context of a lock that it holds
	// what does not fit beside it. With Reentrant: what the held lease does not include.
	ErrDeadlock = errors.New("would wait for itself")
)

// The error types of the kinds above; see package backend.
type (
	HeldError        = backend.HeldError
	InvalidError     = backend.InvalidError
	LimitError       = backend.LimitError
	UnavailableError = backend.UnavailableError
	QuarantineError  = backend.QuarantineError
	RefusedError     = backend.RefusedError
)

// OpError names the operation that failed, the lock and the backend.
type OpError struct {
	Op      string // "acquire"
	Name    string // of the lock; may be empty
	Backend string // "redis"
	// MayHold is true when the lease may be held on the backend in spite of the error. It is being
	// released in the background, and ends with its TTL at the latest.
	MayHold bool
	Err     error
}

// Error returns a text such as: acquire "order:123" on redis: ...
func (e *OpError) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Name != "" {
		fmt.Fprintf(&b, " %q", e.Name)
	}
	// An error of the backend begins with the backend and the operation too.
	cause := strings.TrimPrefix(strings.TrimPrefix(fmt.Sprint(e.Err), e.Backend+": "), e.Op+": ")
	fmt.Fprintf(&b, " on %s: %s", e.Backend, cause)
	return b.String()
}

// Unwrap returns the underlying error.
func (e *OpError) Unwrap() error { return e.Err }

// Cause is why a lock was lost.
type Cause = backend.Cause

// The causes of a loss.
const (
	CauseBroken   = backend.CauseBroken   // an operator broke the lock
	CauseExpired  = backend.CauseExpired  // the lease expired on the backend
	CauseSession  = backend.CauseSession  // the backend ended the client's session
	CauseGone     = backend.CauseGone     // the backend does not have the lease
	CauseDeadline = backend.CauseDeadline // no renewal was acknowledged in time
	CauseEnded    = backend.CauseEnded    // a lease that is not renewed reached its end
	CauseAtMost   = backend.CauseAtMost   // it was held for as long as AtMost allows
	CauseClosed   = backend.CauseClosed   // the client was closed
)

// LostError names the lock that was lost and the cause. It is ErrLost.
type LostError struct {
	Name   string
	Token  fence.Token
	Cause  Cause
	Reason string // given by the operator who broke the lock
	Err    error  // the last error of a renewal, if that was the cause
}

// Error returns a text with the lock, the token and the cause.
func (e *LostError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "lock %q (token %d) is lost: %s", e.Name, e.Token, causeText(e.Cause))
	if e.Reason != "" {
		fmt.Fprintf(&b, " (%s)", e.Reason)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

// Unwrap returns ErrLost. Err is not among what it matches: that the store was unavailable is not what a caller has to know.
func (e *LostError) Unwrap() error { return ErrLost }

func causeText(c Cause) string {
	switch c {
	case CauseBroken:
		return "broken by an operator"
	case CauseExpired:
		return "its lease expired: no renewal reached the store in time"
	case CauseSession:
		return "the store ended the session of the client: it was not renewed in time, or the store lost data"
	case CauseGone:
		return "the store no longer has it: it was restarted or lost data, or the lease has ended"
	case CauseDeadline:
		return "no renewal was acknowledged in time"
	case CauseEnded:
		return "its lease is not renewed and has ended"
	case CauseAtMost:
		return "it was held for the maximum time"
	case CauseClosed:
		return "the client was closed"
	default:
		return string(c)
	}
}

// opErr wraps err in an *OpError unless it is one already.
func (c *Client) opErr(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*OpError](err); ok {
		return err
	}
	return &OpError{Op: op, Name: name, Backend: c.caps.Name, MayHold: acquire.MayHold(err), Err: err}
}
