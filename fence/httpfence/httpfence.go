// Package httpfence carries fencing tokens over HTTP: a transport that sends the token of
// the lock with each request, and a middleware that refuses stale ones.
//
//	client := &http.Client{Transport: &httpfence.Transport{}}
//	req = req.WithContext(httpfence.WithToken(ctx, lock.Token()))
//
//	guarded := httpfence.Handler(next, httpfence.InProcess(fence.NewGuard()),
//		func(r *http.Request) string { return r.PathValue("id") })
package httpfence

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/holdfast-io/holdfast/fence"
)

// Header has the token, in decimal digits.
const Header = "Holdfast-Token"

type tokenKey struct{}

// WithToken gives a context with which Transport sends the token.
func WithToken(ctx context.Context, t fence.Token) context.Context {
	return context.WithValue(ctx, tokenKey{}, t)
}

// Token is the token of a context: that of WithToken, or, in a handler behind Handler,
// that of the request. Give it to the guard of the database too.
func Token(ctx context.Context) (fence.Token, bool) {
	t, ok := ctx.Value(tokenKey{}).(fence.Token)
	return t, ok
}

// Transport sends the token of the request's context, where it has one and the request
// has no Header yet. It may be used at once by many.
type Transport struct {
	// Base does the rest. Default: http.DefaultTransport. Optional.
	Base http.RoundTripper
}

// RoundTrip sends the request. Errors: those of Base.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if token, ok := Token(r.Context()); ok && r.Header.Get(Header) == "" {
		r = r.Clone(r.Context()) // it is the caller's: http.RoundTripper
		r.Header.Set(Header, token.String())
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(r) //nolint:wrapcheck // it is passed on
}

// Gate serves a request, or gives a *fence.StaleError and does not.
type Gate func(ctx context.Context, resource string, t fence.Token, serve func()) error

// InProcess is the gate for data that this process alone writes: while a request is
// served no other one of the same resource is, so that no later token can come in
// between.
func InProcess(g *fence.Guard) Gate {
	return func(_ context.Context, resource string, t fence.Token, serve func()) error {
		return g.Do(resource, t, func() error { serve(); return nil })
	}
}

// At is a gate that checks before it serves. A request with a later token may be served
// meanwhile: whatever is written has to be checked again where it is written, with the
// Token of the request's context.
func At(check func(ctx context.Context, resource string, t fence.Token) error) Gate {
	return func(ctx context.Context, resource string, t fence.Token, serve func()) error {
		if err := check(ctx, resource, t); err != nil {
			return err
		}
		serve()
		return nil
	}
}

// Handler refuses requests whose token is stale. resource names what a request writes, as
// the holders of its lock know it; empty: the request is served without a token.
//
//   - 428 Precondition Required: there is no Header.
//   - 400 Bad Request: it is no token, or is there twice.
//   - 412 Precondition Failed: it is stale. The body tells the token that was seen before.
//   - 503 Service Unavailable: the gate could not tell.
//
// The bodies are problem+json (RFC 9457).
func Handler(next http.Handler, gate Gate, resource func(*http.Request) string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		what := resource(r)
		if what == "" {
			next.ServeHTTP(w, r)
			return
		}
		given := r.Header.Values(Header)
		if len(given) == 0 {
			refuse(w, problem{Title: "Fencing token required", Status: http.StatusPreconditionRequired, Detail: "The request needs the header " + Header + "."})
			return
		}
		t, err := fence.Parse(given[0])
		if err == nil && len(given) > 1 {
			err = errors.New(Header + " is there more than once")
		}
		if err != nil {
			refuse(w, problem{Title: "Invalid fencing token", Status: http.StatusBadRequest, Detail: err.Error()})
			return
		}
		served := false
		err = gate(r.Context(), what, t, func() {
			served = true
			next.ServeHTTP(w, r.WithContext(WithToken(r.Context(), t)))
		})
		if err != nil && !served {
			refuse(w, problemOf(err, t))
		}
	})
}

// problem is a body of RFC 9457.
type problem struct {
	Type   string      `json:"type"`
	Title  string      `json:"title"`
	Status int         `json:"status"`
	Detail string      `json:"detail"`
	Token  fence.Token `json:"token,omitempty"`
	Newest fence.Token `json:"newest,omitempty"`
}

func problemOf(err error, t fence.Token) problem {
	var invalid *fence.InvalidError
	var stale *fence.StaleError
	switch {
	case errors.As(err, &stale):
		return problem{Title: "Stale fencing token", Status: http.StatusPreconditionFailed, Detail: "The lock has gone to somebody else since.", Token: t, Newest: stale.Newest}
	case errors.As(err, &invalid):
		return problem{Title: "Invalid fencing token", Status: http.StatusBadRequest, Detail: invalid.Error()}
	default: // not the text: it may tell more than a stranger is to know
		return problem{Title: "Fencing token not checked", Status: http.StatusServiceUnavailable, Detail: "Whether the token is stale could not be found out. Nothing was done."}
	}
}

func refuse(w http.ResponseWriter, p problem) {
	p.Type = "about:blank"
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // who does not read it is gone
}
