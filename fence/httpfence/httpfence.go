// Package httpfence carries fencing tokens over HTTP: a transport that sends the token of
// the lock with each request, and a handler that refuses stale ones.
//
//	client := &http.Client{Transport: &httpfence.Transport{}}
//	req = req.WithContext(httpfence.WithToken(ctx, lock.Token()))
//
//	guarded, err := httpfence.Handler(next, httpfence.Config{
//		Authorize: func(w http.ResponseWriter, r *http.Request, resource string) bool { ... },
//		Resource:  func(r *http.Request) string { return r.PathValue("id") },
//		Gate:      httpfence.InProcess(fence.NewGuard()),
//	})
//
// # Authentication comes first
//
// A guard remembers the greatest token that it was shown. A caller that may show it any token can
// shut out the rightful holder for good, and a caller that may invent resources can fill the guard.
// So a token is read only after Config.Authorize has accepted the caller for this resource. Two
// bounds limit what an authorized caller can do by mistake: Config.Ceiling refuses tokens that no
// lock store can have issued, and fence.Config bounds the number of resources and the jump of a
// token.
package httpfence

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/holdfast-io/holdfast/fence"
)

// Header is the name of the header with the token in the form of fence.Stamp: decimal digits, after
// the epoch and a colon if the epoch is not 0.
const Header = "Holdfast-Token"

type stampKey struct{}

// WithToken returns a context with which Transport sends the token, in epoch 0.
func WithToken(ctx context.Context, t fence.Token) context.Context {
	return WithStamp(ctx, fence.Stamp{Token: t})
}

// WithStamp returns a context with which Transport sends the token and its epoch.
func WithStamp(ctx context.Context, s fence.Stamp) context.Context {
	return context.WithValue(ctx, stampKey{}, s)
}

// Stamp returns the stamp of a context: that of WithToken or WithStamp, or, in a handler
// behind Handler, that of the request. Pass it on to the guard of the database.
func Stamp(ctx context.Context) (fence.Stamp, bool) {
	s, ok := ctx.Value(stampKey{}).(fence.Stamp)
	return s, ok
}

// Token returns the token of Stamp, without its epoch.
func Token(ctx context.Context) (fence.Token, bool) {
	s, ok := Stamp(ctx)
	return s.Token, ok
}

// Transport sends the stamp of the request's context, if it has one and the request has no Header
// yet. It is safe for concurrent use.
type Transport struct {
	// Base sends the request. Default: http.DefaultTransport. Optional.
	Base http.RoundTripper
}

// RoundTrip sends the request. Errors: those of Base.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if s, ok := Stamp(r.Context()); ok && r.Header.Get(Header) == "" {
		r = r.Clone(r.Context()) // http.RoundTripper must not modify the caller's request
		r.Header.Set(Header, s.String())
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(r) //nolint:wrapcheck // it is passed on
}

// Gate serves a request, or returns an error of package fence without serving it.
type Gate func(ctx context.Context, resource string, s fence.Stamp, serve func()) error

// InProcess is the gate for data that only this process writes. While a request is served, no other
// request of the same resource is, so no later token can come in between.
func InProcess(g *fence.Guard) Gate {
	return func(_ context.Context, resource string, s fence.Stamp, serve func()) error {
		return g.DoStamp(resource, s, func() error { serve(); return nil })
	}
}

// At is a gate that checks before it serves. A request with a later token may be served after the
// check, so every write has to be checked again where it is done, with the Stamp of the request's
// context.
func At(check func(ctx context.Context, resource string, s fence.Stamp) error) Gate {
	return func(ctx context.Context, resource string, s fence.Stamp, serve func()) error {
		if err := check(ctx, resource, s); err != nil {
			return err
		}
		serve()
		return nil
	}
}

// Config configures Handler.
type Config struct {
	// Authorize reports whether the caller may write the resource. If it may not, Authorize has
	// written the answer, such as 401 or 403, and nothing of the request reaches the guard. Use
	// Authenticated if an earlier handler has already decided. Required.
	Authorize func(w http.ResponseWriter, r *http.Request, resource string) bool
	// Resource returns the name of what a request writes, as the holders of its lock know it.
	// Empty: the request needs no token, and is served without Authorize. Return only names of
	// things that exist, or bound what a caller can invent. Required.
	Resource func(*http.Request) string
	// Gate compares and remembers tokens. Required.
	Gate Gate
	// Ceiling returns the greatest token that is accepted at a time. Tokens above it are refused
	// before the gate sees them. Default: fence.Ceiling, which fits every lock store of this
	// module; a store with greater tokens, such as nanoseconds, needs its own. Optional.
	Ceiling func(now time.Time) fence.Token
}

// Authenticated is the Authorize of a handler that only authenticated callers reach, each of whom
// may write every resource:
//
//	authenticate(guarded) // the order: authentication, and then the token
func Authenticated(http.ResponseWriter, *http.Request, string) bool { return true }

// Handler refuses requests whose token is stale. Its answers:
//
//   - those of Config.Authorize.
//   - 428 Precondition Required: the Header is missing.
//   - 400 Bad Request: it is not a token, occurs twice, or exceeds what its lock store can have
//     issued.
//   - 412 Precondition Failed: it is stale. The body has the token that was seen before.
//   - 409 Conflict: it is of another lock store or epoch: see fence.ErrEpoch.
//   - 507 Insufficient Storage: the guard remembers as many resources as it may.
//   - 503 Service Unavailable: the gate could not check the token.
//
// The bodies are problem+json (RFC 9457).
//
// Errors: *fence.InvalidError where a required field is missing.
func Handler(next http.Handler, cfg Config) (http.Handler, error) {
	for field, missing := range map[string]bool{
		"next": next == nil, "authorize": cfg.Authorize == nil, "resource": cfg.Resource == nil, "gate": cfg.Gate == nil,
	} {
		if missing {
			return nil, &fence.InvalidError{Field: field, Value: "nil", Bound: "set: see httpfence.Config"}
		}
	}
	if cfg.Ceiling == nil {
		cfg.Ceiling = fence.Ceiling
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		what := cfg.Resource(r)
		if what == "" {
			next.ServeHTTP(w, r)
			return
		}
		if !cfg.Authorize(w, r, what) {
			return
		}
		if len(r.Header.Values(Header)) == 0 {
			refuse(w, problem{Title: "Fencing token required", Status: http.StatusPreconditionRequired, Detail: "The request needs the header " + Header + "."})
			return
		}
		s, err := presented(r, what, cfg.Ceiling(time.Now()))
		if err != nil {
			refuse(w, problem{Title: "Invalid fencing token", Status: http.StatusBadRequest, Detail: err.Error()})
			return
		}
		served := false
		err = cfg.Gate(r.Context(), what, s, func() {
			served = true
			next.ServeHTTP(w, r.WithContext(WithStamp(r.Context(), s)))
		})
		switch {
		case served:
		case err == nil: // an empty answer of 200 would say that the write was done
			refuse(w, problem{Title: "Not served", Status: http.StatusInternalServerError, Detail: "The gate neither served nor refused the request."})
		default:
			refuse(w, problemOf(err, s))
		}
	}), nil
}

var errTwice = errors.New(Header + " occurs more than once")

// presented reads the stamp of a request.
func presented(r *http.Request, resource string, ceiling fence.Token) (fence.Stamp, error) {
	given := r.Header.Values(Header)
	s, err := fence.ParseStamp(given[0])
	switch {
	case err != nil:
		return s, err
	case len(given) > 1:
		return s, errTwice
	case s.Token > ceiling:
		return s, &fence.JumpError{Resource: resource, Token: s.Token, Max: ceiling}
	}
	return s, nil
}

// problem is a problem+json body (RFC 9457).
type problem struct {
	Type   string      `json:"type"`
	Title  string      `json:"title"`
	Status int         `json:"status"`
	Detail string      `json:"detail"`
	Token  fence.Token `json:"token,omitempty"`
	Epoch  uint32      `json:"epoch,omitempty"`
	Newest fence.Token `json:"newest,omitempty"`
}

func problemOf(err error, s fence.Stamp) problem {
	var invalid *fence.InvalidError
	var stale *fence.StaleError
	var epoch *fence.EpochError
	var jump *fence.JumpError
	switch {
	case errors.As(err, &stale):
		return problem{
			Title: "Stale fencing token", Status: http.StatusPreconditionFailed, Token: s.Token, Epoch: s.Epoch, Newest: stale.Newest,
			Detail: "The lock has been granted to another client since.",
		}
	case errors.As(err, &epoch):
		return problem{Title: "Fencing token of another lock store or epoch", Status: http.StatusConflict, Detail: epoch.Error(), Token: s.Token, Epoch: s.Epoch}
	case errors.As(err, &jump):
		return problem{Title: "Invalid fencing token", Status: http.StatusBadRequest, Detail: jump.Error(), Token: s.Token, Epoch: s.Epoch}
	case errors.As(err, &invalid):
		return problem{Title: "Invalid fencing token", Status: http.StatusBadRequest, Detail: invalid.Error()}
	case errors.Is(err, fence.ErrFull):
		return problem{
			Title: "Too many resources", Status: http.StatusInsufficientStorage,
			Detail: "This service cannot guard one more resource. Nothing was done.",
		}
	default: // not the text of the error: it may contain what a stranger must not know
		return problem{Title: "Fencing token not checked", Status: http.StatusServiceUnavailable, Detail: "Whether the token is stale could not be found out. Nothing was done."}
	}
}

func refuse(w http.ResponseWriter, p problem) {
	p.Type = "about:blank"
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // a caller that does not read it has hung up
}
