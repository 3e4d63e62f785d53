package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// errStopping is why waiting requests end when the server stops.
var errStopping = errors.New("the server is stopping")

// refusal is an error answer of the guard.
type refusal struct {
	status int
	err    error
}

func (e *refusal) Error() string { return e.err.Error() }
func (e *refusal) Unwrap() error { return e.err }

// tooBigError means that the body exceeds its limit.
type tooBigError struct{ limit int64 }

func (e *tooBigError) Error() string { return fmt.Sprintf("body: must be at most %d bytes", e.limit) }

// overloadError means that a limit rejected the request. Nothing was done.
type overloadError struct {
	status int
	what   string
}

func (e *overloadError) Error() string { return e.what }

// problemOf converts an error to the problem document that reports it. This is decided only
// here.
func problemOf(err error, now time.Time) wire.Problem {
	if p, ok := guardProblem(err); ok {
		return p
	}
	if p, ok := requestProblem(err); ok {
		return p
	}
	p := wire.Problem{Detail: err.Error()}
	held, isHeld := errors.AsType[*backend.HeldError](err)
	q, inQuarantine := errors.AsType[*backend.QuarantineError](err)
	no, isRefused := errors.AsType[*backend.RefusedError](err)
	switch {
	case isHeld:
		p.Type, p.Title, p.Status = wire.TypeHeld, "Lock is held", http.StatusConflict
		p.Holders = wire.FromHolders(backend.FirstHolders(held.Holders), now)
		p.HolderCount, p.Position = max(held.Count, len(held.Holders)), held.Ahead+1
		p.Detail = held.Error()
	case errors.Is(err, backend.ErrHeld):
		p.Type, p.Title, p.Status = wire.TypeHeld, "Lock is held", http.StatusConflict
		p.Holders, p.Position = []wire.Holder{}, 1
	case errors.Is(err, errStopping):
		p.Type, p.Title, p.Status = wire.TypeStopping, "Server is stopping", http.StatusServiceUnavailable
		p.Detail = "The server stops. Where the client made the lease, ask again with it: its place in the queue is kept for a while."
		p.MayHold = mayHold(err)
	case errors.Is(err, backend.ErrLost):
		p.Type, p.Title, p.Status = wire.TypeLost, "Lease is lost", http.StatusGone
		p.Detail = "The lease is not held: it ended, was released, or was broken. This is final; take the lock again, with another lease ID."
		if lost, ok := errors.AsType[*holdfast.LostError](err); ok {
			p.Cause, p.Reason = string(lost.Cause), lost.Reason
		} else if lost, ok := errors.AsType[*backend.LossError](err); ok {
			p.Cause, p.Reason = string(lost.Cause), lost.Reason
		}
	case inQuarantine:
		p.Type, p.Title, p.Status = wire.TypeQuarantine, "Nothing is granted yet", http.StatusServiceUnavailable
		p.Detail = q.Error()
		p.Backend, p.Reason, p.Left, p.Parameter = q.Backend, q.Reason, wire.Duration(q.Left), q.Parameter
		p.MayHold = mayHold(err)
	case isRefused:
		p.Type, p.Title, p.Status = wire.TypeRefused, "The store refuses", http.StatusServiceUnavailable
		p.Detail = no.Error()
		p.Backend, p.Reason, p.Remedy = no.Backend, no.Reason, no.Remedy
		p.MayHold = mayHold(err)
	case errors.Is(err, backend.ErrUnsupported):
		p.Type, p.Title, p.Status = wire.TypeUnsupported, "Not supported by the backend", http.StatusNotImplemented
	default:
		// An error that is not known to be an answer is an unknown outcome, never "not held".
		p.Type, p.Title, p.Status = wire.TypeUnavailable, "Backend is unavailable", http.StatusServiceUnavailable
		p.MayHold = mayHold(err)
	}
	return p
}

// requestProblem reports what is wrong with the request itself.
func requestProblem(err error) (wire.Problem, bool) {
	if errors.Is(err, backend.ErrRefused) {
		return wire.Problem{}, false // what the store refuses is this server's, such as its credentials, not the client's
	}
	p := wire.Problem{Type: wire.TypeInvalid, Title: "Invalid request", Status: http.StatusBadRequest, Detail: err.Error()}
	if bad, ok := errors.AsType[*backend.InvalidError](err); ok {
		p.Field, p.Value, p.Bound, p.Detail = bad.Field, bad.Value, bad.Bound, bad.Error()
		return p, true
	}
	if limit, ok := errors.AsType[*backend.LimitError](err); ok {
		p.Type, p.Title, p.Detail = wire.TypeLimit, "Another limit is in force", limit.Error()
		p.Field, p.Value = "limit", strconv.Itoa(max(1, limit.Asked))
		p.Bound, p.InForce = strconv.Itoa(max(1, limit.InForce)), &limit.InForce
		return p, true
	}
	return p, errors.Is(err, backend.ErrInvalid)
}

func guardProblem(err error) (wire.Problem, bool) {
	if big, ok := errors.AsType[*tooBigError](err); ok {
		return wire.Problem{
			Type: wire.TypeTooLarge, Title: "Request is too large", Status: http.StatusRequestEntityTooLarge,
			Detail: big.Error(), Field: "body", Bound: fmt.Sprintf("at most %d bytes", big.limit),
		}, true
	}
	if no, ok := errors.AsType[*overloadError](err); ok {
		p := wire.Problem{Type: wire.TypeOverloaded, Title: "Server is overloaded", Status: no.status, Detail: no.what, MayHold: new(mayBeHeld(err))}
		if no.status == http.StatusTooManyRequests {
			p.Type, p.Title = wire.TypeTooMany, "Too many requests"
		}
		return p, true
	}
	no, ok := errors.AsType[*refusal](err)
	if !ok {
		return wire.Problem{}, false
	}
	p := wire.Problem{Title: http.StatusText(no.status), Status: no.status, Detail: no.Error()}
	switch no.status {
	case http.StatusUnauthorized:
		p.Type = wire.TypeUnauthenticated
	case http.StatusForbidden:
		p.Type = wire.TypeForbidden
	case http.StatusPreconditionFailed:
		p.Type, p.Title = wire.TypeOtherStore, "Another store"
	case http.StatusRequestTimeout:
		p.Type = wire.TypeTimeout
	case http.StatusUnsupportedMediaType:
		p.Type = wire.TypeUnsupportedMedia
	default:
		p.Type = wire.TypeInvalid
	}
	return p, true
}

// mayBeHeld reports whether the error says that the lease may be held.
func mayBeHeld(err error) bool {
	op, ok := errors.AsType[*holdfast.OpError](err)
	return ok && op.MayHold
}

// mayHold is true unless the error reports otherwise.
func mayHold(err error) *bool {
	if op, ok := errors.AsType[*holdfast.OpError](err); ok {
		return new(op.MayHold)
	}
	if away, ok := errors.AsType[*backend.UnavailableError](err); ok {
		return new(away.MayHold)
	}
	return new(!errors.Is(err, backend.ErrClosed))
}

// fail answers with the problem document of err.
func (s *Server) fail(w http.ResponseWriter, r *request, err error) { s.failWith(w, r, err, nil) }

// failWith is fail with the capabilities of the backend in the answer.
func (s *Server) failWith(w http.ResponseWriter, r *request, err error, caps *wire.Capabilities) {
	p := s.conceal(r, r.name, problemOf(err, time.Now()))
	p.Capabilities = caps
	if p.Type == wire.TypeQuarantine {
		s.noteQuarantine(err)
	}
	switch p.Status {
	case http.StatusConflict, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter(p, err)))
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="holdfast"`)
	}
	s.write(w, r, p.Status, p)
}

// conceal removes from a refusal what the caller may not see.
func (s *Server) conceal(r *request, name string, p wire.Problem) wire.Problem {
	if len(p.Holders) > 0 {
		s.viewOf(r, name).hideHolders(p.Holders)
	}
	return p
}

// retryAfter returns whole seconds: at least 1, and at most the time left of the lease that
// ends first, because nothing is known about whether it will be renewed.
func retryAfter(p wire.Problem, err error) int {
	const most = 10 * time.Second
	d := time.Second
	if away, ok := errors.AsType[*backend.UnavailableError](err); ok {
		d = max(d, away.RetryAfter)
	}
	if p.Type == wire.TypeQuarantine { // trying again before its end would fail
		return int(math.Ceil(d.Seconds()))
	}
	if held, ok := errors.AsType[*backend.HeldError](err); ok && p.Status == http.StatusConflict && len(held.Holders) > 0 {
		left := most
		for _, h := range held.Holders {
			left = min(left, h.Left)
		}
		d = max(d, left)
	}
	return int(math.Ceil(min(d, most).Seconds()))
}

// write sends v as JSON, under a deadline, when the handler returns. The error is only logged:
// a client that is gone is not the server's problem. Callers that need the error use
// writeChecked.
func (s *Server) write(w http.ResponseWriter, r *request, status int, v any) {
	if _, err := s.put(w, r, status, v); err != nil {
		s.unwritten(r, err)
	}
}

func (s *Server) unwritten(r *request, err error) {
	s.cfg.Logger.LogAttrs(r.Context(), slog.LevelDebug, "answer not written", attrError(err))
}

// writeChecked reports whether any of the answer may have reached the client. The state of the
// request's context afterwards does not count: a client that has read its answer may hang up
// before this returns.
func (s *Server) writeChecked(w http.ResponseWriter, r *request, status int, v any) (bool, error) {
	sent, err := s.put(w, r, status, v)
	if err != nil || r.Method == http.MethodHead {
		return sent, err
	}
	if err := http.NewResponseController(w).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return true, fmt.Errorf("send the answer: %w", err)
	}
	return true, nil
}

// put writes an answer, and reports whether any of it may have been sent.
func (s *Server) put(w http.ResponseWriter, r *request, status int, v any) (bool, error) {
	b, err := encode(v)
	if err != nil {
		return false, err
	}
	if _, isProblem := v.(wire.Problem); isProblem {
		w.Header().Set("Content-Type", wire.ContentTypeProblem)
	}
	return s.send(w, r, status, b)
}

// encode returns the JSON of an answer.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(true) // a browser never takes an answer for a page, whatever the names in it
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return b.Bytes(), nil
}

// send writes the JSON of an answer, and reports whether any of it may have been sent.
func (s *Server) send(w http.ResponseWriter, r *request, status int, b []byte) (bool, error) {
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	w.Header().Set(wire.HeaderTime, wire.FormatTime(time.Now()))
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	c := http.NewResponseController(w)
	if err := c.SetWriteDeadline(time.Now().Add(s.cfg.Limits.WriteTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return false, fmt.Errorf("set the deadline: %w", err)
	}
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return true, nil
	}
	if _, err := w.Write(b); err != nil {
		return true, fmt.Errorf("write the answer: %w", err)
	}
	return true, nil
}

// short shortens a value that a caller sent.
func short(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most]
	}
	return strconv.Quote(strings.ToValidUTF8(s, "?"))
}
