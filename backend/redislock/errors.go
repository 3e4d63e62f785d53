package redislock

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/connect"
)

var (
	// ErrForeignData means that a key of Holdfast holds data that Holdfast did not write.
	// Nothing is granted on it. It is wrapped in a *backend.UnavailableError.
	ErrForeignData = errors.New("a key holds data that Holdfast did not write")
	// ErrClockBehind means that the server's clock is more than an hour behind the last token
	// of the lock, so that a token might not grow. It is wrapped in a
	// *backend.UnavailableError.
	ErrClockBehind = errors.New("the server's clock is more than an hour behind the last token of the lock")

	errListening = errors.New("no subscription within the request timeout")
	errMissed    = errors.New("events may have been missed")
)

// unheard returns why there is no subscription. last is the error of the last attempt; nil: there was none.
func unheard(last error) error {
	if last == nil {
		return errListening
	}
	return fmt.Errorf("%w: %w", errListening, last)
}

// toKind maps every error of a call to a kind of package backend. No other function does.
func toKind(op string, err error) error {
	var sent *sentError
	var server *serverError
	var partial *partialError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, backend.ErrClosed):
		return backend.ErrClosed
	case errors.As(err, &partial):
		return &backend.UnavailableError{Backend: backendName, Op: op, Err: err}
	case errors.As(err, &server):
		return &backend.UnavailableError{Backend: backendName, Op: op, MayHold: !server.Unexecuted(), Err: connect.Refused(backendName, describe(server), server.Remedy())}
	case errors.As(err, &sent):
		return &backend.UnavailableError{Backend: backendName, Op: op, MayHold: sent.sent, Err: connect.Refused(backendName, sent.err, "")}
	default:
		return &backend.UnavailableError{Backend: backendName, Op: op, Err: connect.Refused(backendName, err, "")}
	}
}

func describe(e *serverError) error {
	if right := e.Missing(); right != "" {
		return connect.Lacks(backendName, right, e)
	}
	switch e.Code {
	case "WRONGTYPE", "HFFOREIGN":
		return fmt.Errorf("%w (%w)", ErrForeignData, e)
	case "HFFORMAT":
		return fmt.Errorf("the data on the server has another format (%w)", e)
	default:
		return e
	}
}

// refusal maps an answer of the script that is not a success to an error.
func refusal(op string, d *decoder, name string, limit int) error {
	word := d.Text()
	switch word {
	case "LOST":
		return backend.ErrLost
	case "SESSION":
		return backend.ErrSessionLost
	case "LIMIT":
		e := &backend.LimitError{Name: name, Asked: limit, InForce: int(d.Int())}
		if d.Err == nil {
			return e
		}
	case "HELD":
		ahead, holders, count := d.Int(), d.holders(), d.Int()
		if d.Err == nil {
			return backend.NewHeldError(name, holders, int(count), int(ahead))
		}
	case "QUARANTINE":
		left := max(d.Micros(), time.Millisecond)
		e := &backend.QuarantineError{
			Backend: backendName, Reason: whyQuarantined(d.Text()), Left: left, Until: time.Now().Add(left), Parameter: "quarantine=off",
		}
		if d.Err == nil {
			return e.Unavailable(backendName, op, false)
		}
	case "CLOCK":
		return &backend.UnavailableError{Backend: backendName, Op: op, Err: ErrClockBehind}
	}
	return toKind(op, &sentError{sent: true, err: program.ErrReply})
}

// whyQuarantined returns the reason in words: see lua/marker.lua.
func whyQuarantined(reason string) string {
	switch reason {
	case "n":
		return "the server is new or lost its data"
	case "l":
		return "the server has no data and may have lost it"
	case "r":
		return "the server was restarted and may lack the most recent writes"
	case "p":
		return "the server was promoted and may lack the most recent writes"
	default:
		return "the server may have lost data"
	}
}

// readOnly clears MayHold, for operations that cannot make the caller a holder.
func readOnly(err error) error {
	if away, ok := errors.AsType[*backend.UnavailableError](err); ok {
		away.MayHold = false
	}
	return err
}
