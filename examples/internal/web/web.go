// Package web is what the services have in common: routes whose functions return errors, bodies
// that are bounded and have no unknown field, errors as problem details (RFC 9457), time-outs, the
// command line, and a stop that lets requests in progress finish.
package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// MaxBody is the most bytes of a request's body.
	MaxBody = 4 << 10
	// RequestTime is how long a request may take in all.
	RequestTime = 20 * time.Second
)

// ProblemError is an answer that reports a problem. It is sent as problem details.
type ProblemError struct {
	// Status is the HTTP status. Required.
	Status int
	// Type names the kind for programs: a word, which becomes a URN. Default: about:blank.
	// Optional.
	Type string
	// Title and Detail are for people: the kind of problem, and this one. Default: the status'
	// text, and none. Optional.
	Title, Detail string
	// RetryAfter is when to retry, sent in whole seconds. Default: not sent. Optional.
	RetryAfter time.Duration
	// With are further members of the JSON object. Optional.
	With map[string]any
}

// Error is the title and the detail.
func (p *ProblemError) Error() string {
	title := cmp.Or(p.Title, http.StatusText(p.Status))
	if p.Detail == "" {
		return title
	}
	return title + ": " + p.Detail
}

// Invalid is the problem of a request with a field that cannot be right: 400.
func Invalid(field, detail string) *ProblemError {
	return &ProblemError{
		Status: http.StatusBadRequest, Type: "invalid", Title: "Invalid request", Detail: field + " " + detail, With: map[string]any{"field": field},
	}
}

// Unavailable is the problem of a service whose store is unavailable: 503. The caller may not
// learn more; the log does.
func Unavailable() *ProblemError {
	return &ProblemError{
		Status: http.StatusServiceUnavailable, Type: "unavailable", Title: "Service is unavailable", RetryAfter: time.Second,
		Detail: "A store that the service needs did not answer, so whether anything was done is not known. Ask again.",
	}
}

// Handler answers a request, or returns the reason why it did not.
type Handler func(w http.ResponseWriter, r *http.Request) error

// New makes a handler of routes, which are named as for http.ServeMux: "POST /lock". explain
// turns an error into the problem that is sent for it; nil stands for Unavailable, and for a
// line in the log. A *ProblemError explains itself. A path or method that is not in the routes
// is 404 or 405, as problem details too. Problems are in English, or in Portuguese: see Portuguese.
func New(log *slog.Logger, routes map[string]Handler, explain func(error) *ProblemError, pt Portuguese) http.Handler {
	serve := func(h Handler) http.Handler { return serve(log, h, explain, pt) }
	mux := http.NewServeMux()
	methods := make(map[string][]string)
	for _, route := range slices.Sorted(maps.Keys(routes)) {
		method, path, _ := strings.Cut(route, " ")
		methods[path] = append(methods[path], method)
		mux.Handle(route, serve(routes[route]))
	}
	for path, allowed := range methods {
		mux.Handle(path, serve(func(w http.ResponseWriter, r *http.Request) error {
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			return &ProblemError{Status: http.StatusMethodNotAllowed, Type: "method", Detail: r.Method + " is none of " + strings.Join(allowed, ", ")}
		}))
	}
	mux.Handle("/", serve(func(http.ResponseWriter, *http.Request) error {
		return &ProblemError{Status: http.StatusNotFound, Type: "no-such-path", Detail: "there is nothing under this path"}
	}))
	return mux
}

func serve(log *slog.Logger, h Handler, explain func(error) *ProblemError, pt Portuguese) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), RequestTime)
		defer cancel()
		err := h(w, r.WithContext(ctx))
		if err == nil {
			return
		}
		problem, ok := errors.AsType[*ProblemError](err)
		if !ok {
			problem = explain(err)
		}
		if problem == nil {
			problem = Unavailable()
			log.LogAttrs(ctx, slog.LevelWarn, "request failed",
				slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Any("error", err))
		}
		pt.write(w, r, problem)
	})
}

// body returns the JSON object, with the title and detail of that text.
func (p *ProblemError) body(text Text) map[string]any {
	body := map[string]any{"type": "about:blank", "title": text.Title, "status": p.Status}
	if p.Type != "" {
		body["type"] = "urn:holdfast:example:" + p.Type
	}
	if text.Detail != "" {
		body["detail"] = text.Detail
	}
	maps.Copy(body, p.With)
	return body
}

// JSON answers with v.
func JSON(w http.ResponseWriter, status int, v any) error {
	write(w, status, "application/json", v)
	return nil
}

// write sends v. An error is ignored: when the client has gone, no one is left to report it to.
func write(w http.ResponseWriter, status int, kind string, v any) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// Decode reads the body into v: one JSON value of at most MaxBody bytes, without a field
// that v does not have. Errors: *ProblemError, 400 or 413.
func Decode(w http.ResponseWriter, r *http.Request, v any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, MaxBody))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = errMore
		}
	}
	return badBody(err)
}

var errMore = errors.New("there is more after the JSON value")

func badBody(err error) *ProblemError {
	if big, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &ProblemError{
			Status: http.StatusRequestEntityTooLarge, Type: "too-large", Detail: fmt.Sprintf("the body must be at most %d bytes", big.Limit),
		}
	}
	if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return Invalid(cmp.Or(kind.Field, "body"), "cannot be a JSON "+kind.Value)
	}
	if errors.Is(err, io.EOF) {
		return Invalid("body", "is empty")
	}
	return Invalid("body", "is not the JSON object that is asked for: "+strings.TrimPrefix(err.Error(), "json: "))
}

// ID reads a number from the path. Errors: *ProblemError, 400.
func ID(r *http.Request, name string) (int64, error) {
	id, err := strconv.ParseInt(r.PathValue(name), 10, 64)
	if err != nil || id < 1 {
		return 0, Invalid(name, "must be a whole number above 0")
	}
	return id, nil
}
