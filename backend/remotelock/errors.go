package remotelock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/wire"
)

var errAnswer = errors.New("the answer is not that of a Holdfast server")

// failed maps the error of a request that got no answer.
func (b *Backend) failed(ctx context.Context, c call, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause // of the caller's context, or ErrClosed
	}
	if b.life.Err() != nil { // Close closes the connections, and ctx may not have ended yet
		return backend.ErrClosed
	}
	// A *url.Error repeats the URL, which the error has already.
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return b.unavailable(c.op, c.changes && !connect.IsDial(err) && !errors.Is(err, errNotServed), err)
}

// problem maps a refusal of the server to an error. This is decided only here. header is the
// header of the answer, if there is one.
func (b *Backend) problem(c call, p wire.Problem, header http.Header) error {
	switch p.Type {
	case wire.TypeHeld:
		return backend.NewHeldError(c.name, wire.ToHolders(p.Holders, clockOf(header)), p.HolderCount, max(0, p.Position-1))
	case wire.TypeLost:
		if p.Cause == string(backend.CauseBroken) {
			return fmt.Errorf("%s: %w", c.op, &backend.LossError{Cause: backend.CauseBroken, Reason: p.Reason})
		}
		return fmt.Errorf("%s: %w", c.op, backend.ErrLost)
	case wire.TypeLimit:
		limit := &backend.LimitError{Name: c.name, Asked: c.limit}
		if p.InForce != nil {
			limit.InForce = *p.InForce
		}
		return limit
	case wire.TypeUnsupported:
		return fmt.Errorf("%s: %w", c.op, backend.ErrUnsupported)
	case wire.TypeInvalid:
		return invalid(p.Field, p.Value, p.Bound)
	case wire.TypeUnauthenticated, wire.TypeForbidden:
		return denied(p.Detail)
	}
	if p.Type == wire.TypeQuarantine {
		return quarantine(p).Unavailable(name, c.op, c.changes && (p.MayHold == nil || *p.MayHold))
	}
	away := &backend.UnavailableError{
		Backend: name, Op: c.op, MayHold: c.changes, RetryAfter: retryAfter(header),
		Err: fmt.Errorf("the server answered %s", text(p)), //nolint:err113 // the text of the server
	}
	if p.Type == wire.TypeRefused {
		away.Err = &backend.RefusedError{Backend: p.Backend, Reason: p.Reason, Remedy: p.Remedy}
	}
	switch p.Status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType:
		return invalid("url", strconv.Quote(b.servers.current().base.Redacted()), "that of a Holdfast server, which answered "+text(p))
	case http.StatusUnauthorized, http.StatusForbidden:
		return denied("the server answered " + text(p))
	case http.StatusTooManyRequests, http.StatusRequestTimeout:
		away.MayHold = false
	}
	if p.MayHold != nil {
		away.MayHold = c.changes && *p.MayHold
	}
	return away
}

// denied returns the error of a client that the server does not allow something. why is what the server says.
func denied(why string) error {
	return &backend.RefusedError{Backend: name, Reason: why, Remedy: "give the credentials of a principal that may do this"}
}

// quarantine returns the quarantine of the server's store.
func quarantine(p wire.Problem) *backend.QuarantineError {
	left := max(time.Duration(p.Left), time.Millisecond)
	return &backend.QuarantineError{Backend: p.Backend, Reason: p.Reason, Left: left, Until: time.Now().Add(left), Parameter: p.Parameter}
}

func text(p wire.Problem) string {
	s := strconv.Itoa(p.Status) + " " + http.StatusText(p.Status)
	if p.Detail != "" {
		s += ": " + p.Detail
	}
	return s
}

func retryAfter(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(min(n, 3600)) * time.Second
}
