package backend

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The kinds of error. Test with errors.Is; the types below carry the details.
var (
	// ErrHeld: the lock was not granted: others hold it or are ahead in the queue.
	ErrHeld = errors.New("lock is held")
	// ErrLost: the lease is not held (any more). Final.
	ErrLost = errors.New("lease is lost")
	// ErrSessionLost: the session has ended, with everything under it. Final.
	ErrSessionLost = errors.New("session is lost")
	// ErrInvalid: the request is bad; nothing was changed. See InvalidError.
	ErrInvalid = errors.New("invalid request")
	// ErrLimit: another limit is in force. See LimitError.
	ErrLimit = errors.New("another limit is in force")
	// ErrUnsupported: the backend cannot do this and does not emulate it.
	ErrUnsupported = errors.New("not supported by this backend")
	// ErrUnavailable: the backend is unreachable or refuses for now. See UnavailableError.
	ErrUnavailable = errors.New("backend is unavailable")
	// ErrQuarantine: the backend answers but grants nothing for a while. It is ErrUnavailable too.
	// See QuarantineError.
	ErrQuarantine = errors.New("in quarantine")
	// ErrRefused: the store refuses this client until somebody changes something: a wrong password,
	// database or certificate, a missing right, an answer that is not known to pass. A retry
	// is pointless. It is ErrUnavailable too. See RefusedError.
	ErrRefused = errors.New("refused by the store")
	// ErrClosed: the backend value was closed.
	ErrClosed = errors.New("client or backend is closed")
)

// HeldError names the holders of a lock. It is ErrHeld.
type HeldError struct {
	Name string
	// Holders are held leases in the order of their grants: all of them, or, if there are more,
	// MaxHeldHolders of them.
	Holders []Holder
	// Count is the number of held leases, as far as the backend knows without reading all of them.
	// After NewHeldError it is at least len(Holders).
	Count int
	// Ahead is the number of waiters ahead of the caller.
	Ahead int
}

// Error names the lock and its first holder, and not its note, which not every client may read.
func (e *HeldError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "lock %q is held", e.Name)
	if len(e.Holders) > 0 {
		h := e.Holders[0]
		if h.Owner != "" {
			fmt.Fprintf(&b, " by %q", h.Owner)
		}
		if !h.Since.IsZero() {
			fmt.Fprintf(&b, " since %s", h.Since.UTC().Format(time.RFC3339))
		}
		fmt.Fprintf(&b, ", token %d", h.Token)
		if h.Left > 0 {
			fmt.Fprintf(&b, ", and lapses in %s unless renewed", h.Left.Round(time.Millisecond))
		}
		if n := max(e.Count, len(e.Holders)) - 1; n > 0 {
			fmt.Fprintf(&b, ", and by %d more", n)
		}
	}
	if e.Ahead > 0 {
		fmt.Fprintf(&b, "; %d ahead in the queue", e.Ahead)
	}
	return b.String()
}

// Unwrap returns ErrHeld.
func (e *HeldError) Unwrap() error { return ErrHeld }

// LossError is the error of a lease that is lost, where the backend can tell how. It is ErrLost.
type LossError struct {
	Cause  Cause
	Reason string // the operator's reason for breaking the lock
}

// Error returns a text with the cause and the reason.
func (e *LossError) Error() string {
	text := ErrLost.Error() + ": " + string(e.Cause)
	if e.Reason != "" {
		text += " (" + e.Reason + ")"
	}
	return text
}

// Unwrap returns ErrLost.
func (e *LossError) Unwrap() error { return ErrLost }

// InvalidError names the invalid field of a request. It is ErrInvalid.
type InvalidError struct {
	Field string // in the words of the API: "ttl"
	Value string // the given value, shortened, and quoted if it is text
	Bound string // what is allowed: "1s to 24h"
}

// Error names the field, the value and the bound.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s %s: must be %s", e.Field, e.Value, e.Bound)
}

// Unwrap returns ErrInvalid.
func (e *InvalidError) Unwrap() error { return ErrInvalid }

// LimitError reports that the requested limit is not the one in force. It is both ErrLimit and
// ErrInvalid.
type LimitError struct {
	Name    string
	Asked   int // 0: no limit
	InForce int // 0: no limit
}

// Error names both limits.
func (e *LimitError) Error() string {
	return fmt.Sprintf("limit %s of lock %q: must be %s, which is in force", limitText(e.Asked), e.Name, limitText(e.InForce))
}

// Unwrap returns ErrLimit and ErrInvalid.
func (e *LimitError) Unwrap() []error { return []error{ErrLimit, ErrInvalid} }

func limitText(n int) string {
	if n == 0 {
		return "none"
	}
	return strconv.Itoa(n)
}

// UnavailableError reports that the backend did not answer, or refuses for now. It is
// ErrUnavailable.
type UnavailableError struct {
	Backend string
	Op      string
	// MayHold is true when the request may have worked: the lease may be held.
	MayHold bool
	// RetryAfter is how long the backend will keep refusing, if it says so.
	RetryAfter time.Duration
	// Err is the cause, without secrets.
	Err error
}

// Error names the backend and the operation, and says whether it may have worked.
func (e *UnavailableError) Error() string {
	var b strings.Builder
	what := ErrUnavailable
	if errors.Is(e.Err, ErrRefused) {
		what = ErrRefused
	}
	fmt.Fprintf(&b, "%s: %s: %v", e.Backend, e.Op, what)
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.RetryAfter > 0 && !errors.Is(e.Err, ErrQuarantine) { // a quarantine states the time itself
		fmt.Fprintf(&b, " (again in %s)", e.RetryAfter.Round(time.Millisecond))
	}
	if e.MayHold {
		b.WriteString(" (it may have worked)")
	}
	return b.String()
}

// Is reports whether target is ErrUnavailable. Clients check this often while a backend is
// unavailable, and Is allocates nothing for it.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

// QuarantineError reports that the store answers but grants nothing yet: it is new, or lost data,
// and leases that it does not know of may still be held. It is ErrQuarantine and ErrUnavailable.
// Backends return it inside an *UnavailableError; see its method Unavailable.
type QuarantineError struct {
	// Backend is the store in quarantine: "redis". Behind a Holdfast server it differs from the
	// backend that the client called.
	Backend string
	// Reason is the reason, for people: "the server is new or lost its data".
	Reason string
	// Left is the remaining time of the quarantine when the store answered, above 0.
	Left time.Duration
	// Until is when it ends, by the clock of this process, for people.
	Until time.Time
	// Parameter of the backend's URL that turns the quarantine off, with its value:
	// "quarantine=off". It is for a store that is known to be new, and for tests.
	Parameter string
}

// Error states the remaining time, the reason and the remedy.
func (e *QuarantineError) Error() string {
	var b strings.Builder
	unit := 10 * time.Millisecond
	if e.Left > time.Second {
		unit = 100 * time.Millisecond
	}
	fmt.Fprintf(&b, "%s is in quarantine for another %s: %s, and leases that it does not know of may still be held",
		e.Backend, max(e.Left.Round(unit), unit), e.Reason)
	if e.Parameter != "" {
		fmt.Fprintf(&b, " (only a server that is known to be new, as in a test, needs none: %s in its URL, or NoQuarantine in its Config)", e.Parameter)
	}
	return b.String()
}

// Is reports whether target is ErrQuarantine or ErrUnavailable.
func (e *QuarantineError) Is(target error) bool {
	return target == ErrQuarantine || target == ErrUnavailable
}

// Unavailable returns the error of an operation that the quarantine refused. mayHold says that an
// earlier request for the same lease may have worked.
func (e *QuarantineError) Unavailable(backend, op string, mayHold bool) *UnavailableError {
	return &UnavailableError{Backend: backend, Op: op, MayHold: mayHold, RetryAfter: e.Left, Err: e}
}

// RefusedError reports what an operator has to change at the store. It is ErrRefused and
// ErrUnavailable. Backends return it inside an *UnavailableError, whose MayHold says whether the
// request may have worked before the store refused the rest of it.
type RefusedError struct {
	// Backend is the store that refuses: "redis". Behind a Holdfast server it differs from the
	// backend that the client called.
	Backend string
	// Reason is what is missing or wrong: "the user lacks the right to UPDATE holdfast.locks". Empty if Err
	// says it.
	Reason string
	// Remedy is what to change, for people: "correct the user and the password".
	Remedy string
	// Err is the error of the store, without secrets; nil if there was none.
	Err error
}

// Error states the reason, the remedy and the error of the store.
func (e *RefusedError) Error() string {
	text := e.Remedy
	if e.Reason != "" {
		text = e.Reason + ": " + text
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Is reports whether target is ErrRefused or ErrUnavailable.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused || target == ErrUnavailable }

// Unwrap returns the error of the store.
func (e *RefusedError) Unwrap() error { return e.Err }

// PartDone returns the error of a call of several steps that failed after one of them may have
// changed something. Whatever the outcome of the last request, the call may have worked and must
// not be repeated. PartDone returns err as an *UnavailableError with MayHold set; ErrClosed and nil
// stay as they are.
func PartDone(name, op string, err error) error {
	if err == nil || errors.Is(err, ErrClosed) {
		return err
	}
	all := UnavailableError{Backend: name, Op: op, MayHold: true, Err: err}
	if last, ok := errors.AsType[*UnavailableError](err); ok {
		all.Err, all.RetryAfter = last.Err, last.RetryAfter
	}
	return &all
}
