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
	// ErrHeld: the lock was not had because others hold it or are in line before.
	ErrHeld = errors.New("lock is held")
	// ErrLost: the lease is not out (any more). Final.
	ErrLost = errors.New("lease is lost")
	// ErrSessionLost: the session has ended, with everything under it. Final.
	ErrSessionLost = errors.New("session is lost")
	// ErrInvalid: the request is bad; nothing was changed. See InvalidError.
	ErrInvalid = errors.New("invalid request")
	// ErrLimit: another limit is in force. See LimitError.
	ErrLimit = errors.New("another limit is in force")
	// ErrUnsupported: the backend cannot do this, and does not pretend.
	ErrUnsupported = errors.New("not supported by this backend")
	// ErrUnavailable: the backend is away or refuses for now. See UnavailableError.
	ErrUnavailable = errors.New("backend is unavailable")
	// ErrQuarantine: the backend answers and grants nothing for a while. It is
	// ErrUnavailable too. See QuarantineError.
	ErrQuarantine = errors.New("in quarantine")
	// ErrClosed: the backend value was closed.
	ErrClosed = errors.New("backend is closed")
)

// HeldError says who has the lock. It is ErrHeld.
type HeldError struct {
	Name string
	// Holders are leases that are out, in order of their grants: all of them, or, where
	// they are more, MaxHeldHolders of them.
	Holders []Holder
	// Count is how many leases are out, as far as the backend knows without reading all
	// of them: at least len(Holders), once NewHeldError has made the error.
	Count int
	// Ahead is how many stand in line before the one who asked.
	Ahead int
}

// Error names the lock and its first holder.
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
			fmt.Fprintf(&b, ", for %s more unless renewed", h.Left.Round(time.Millisecond))
		}
		if n := max(e.Count, len(e.Holders)) - 1; n > 0 {
			fmt.Fprintf(&b, ", and by %d more", n)
		}
	}
	if e.Ahead > 0 {
		fmt.Fprintf(&b, "; %d in line before", e.Ahead)
	}
	return b.String()
}

// Unwrap makes it ErrHeld.
func (e *HeldError) Unwrap() error { return ErrHeld }

// InvalidError names what was wrong with a request. It is ErrInvalid.
type InvalidError struct {
	Field string // the field, in the words of the API: "ttl"
	Value string // what was given, shortened and quoted where it is text
	Bound string // what would be right: "1s to 24h"
}

// Error names the field, the value and the bound.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s %s: must be %s", e.Field, e.Value, e.Bound)
}

// Unwrap makes it ErrInvalid.
func (e *InvalidError) Unwrap() error { return ErrInvalid }

// LimitError says that the limit asked for is not the one in force. It is both
// ErrLimit and ErrInvalid.
type LimitError struct {
	Name    string
	Asked   int // 0: no limit
	InForce int // 0: no limit
}

// Error names both limits.
func (e *LimitError) Error() string {
	return fmt.Sprintf("limit %s of lock %q: must be %s, which is in force", limitText(e.Asked), e.Name, limitText(e.InForce))
}

// Unwrap makes it ErrLimit and ErrInvalid.
func (e *LimitError) Unwrap() []error { return []error{ErrLimit, ErrInvalid} }

func limitText(n int) string {
	if n == 0 {
		return "none"
	}
	return strconv.Itoa(n)
}

// UnavailableError says that the backend did not answer, or refuses for now. It
// is ErrUnavailable.
type UnavailableError struct {
	Backend string
	Op      string
	// MayHold is true when the request may have worked: the lease may be held.
	MayHold bool
	// RetryAfter is how long the backend will go on refusing, when it says so.
	RetryAfter time.Duration
	// Err is the cause, without secrets.
	Err error
}

// Error says what was asked of which backend, and whether it may have worked.
func (e *UnavailableError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s: backend is unavailable", e.Backend, e.Op)
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.RetryAfter > 0 && !errors.Is(e.Err, ErrQuarantine) { // which names the time itself
		fmt.Fprintf(&b, " (again in %s)", e.RetryAfter.Round(time.Millisecond))
	}
	if e.MayHold {
		b.WriteString(" (it may have worked)")
	}
	return b.String()
}

// Is makes it ErrUnavailable. Clients ask again and again while a backend is away: this
// way nothing is allocated for the question.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// Unwrap is the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

// QuarantineError says that the store answers but grants nothing yet: it is new, or lost
// data, and leases that it does not know of may still be held. It is ErrQuarantine and
// ErrUnavailable. Backends return it inside an *UnavailableError, see its method
// Unavailable.
type QuarantineError struct {
	// Backend is the store in quarantine. Behind a server of Holdfast it is not the one
	// that the client asked: "redis".
	Backend string
	// Reason is why, for people: "the server is new or lost its data".
	Reason string
	// Left is how long the quarantine lasted still when the store answered, above 0.
	Left time.Duration
	// Until is when it ends, by the clock of this process, for people.
	Until time.Time
	// Parameter of the backend's URL that turns the quarantine off, with its value:
	// "quarantine=off". It is for a store that is known to be new, and for tests.
	Parameter string
}

// Error says for how long, why, and what can be done.
func (e *QuarantineError) Error() string {
	var b strings.Builder
	unit := 10 * time.Millisecond
	if e.Left > time.Second {
		unit = 100 * time.Millisecond
	}
	fmt.Fprintf(&b, "%s is in quarantine for another %s: %s, and leases that it does not know of may still be held",
		e.Backend, max(e.Left.Round(unit), unit), e.Reason)
	if e.Parameter != "" {
		fmt.Fprintf(&b, " (a new or a test server needs no quarantine: ?%s)", e.Parameter)
	}
	return b.String()
}

// Is makes it ErrQuarantine and ErrUnavailable.
func (e *QuarantineError) Is(target error) bool {
	return target == ErrQuarantine || target == ErrUnavailable
}

// Unavailable returns the error of an operation that the quarantine refused. mayHold says
// that an earlier request for the same lease may have worked.
func (e *QuarantineError) Unavailable(backend, op string, mayHold bool) *UnavailableError {
	return &UnavailableError{Backend: backend, Op: op, MayHold: mayHold, RetryAfter: e.Left, Err: e}
}

// PartDone is the error of a call of several steps after one of them may have changed
// something: whatever became of the last request, the call may have worked, and must not be
// repeated. It returns err as an *UnavailableError with MayHold set; ErrClosed and nil stay
// as they are.
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
