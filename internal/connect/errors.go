package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
)

// IsKind reports whether err is one of the errors of package backend already.
func IsKind(err error) bool {
	for _, kind := range []error{
		backend.ErrHeld, backend.ErrLost, backend.ErrSessionLost, backend.ErrInvalid,
		backend.ErrUnsupported, backend.ErrClosed, backend.ErrUnavailable,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// Cause returns why a call failed: with the cause of ctx and its Err, if ctx has ended, and otherwise with err.
func Cause(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	cause := context.Cause(ctx)
	if !errors.Is(cause, ctx.Err()) {
		cause = fmt.Errorf("%w (%w)", cause, ctx.Err())
	}
	return cause
}

// ErrorOf returns true and the error of a call as its caller gets it, if that is known: nil, an error of
// package backend, or backend.ErrClosed once life has ended. Otherwise it returns false and the cause
// of a *backend.UnavailableError: see Cause.
func ErrorOf(ctx, life context.Context, err error) (bool, error) {
	switch {
	case err == nil:
		return true, nil
	case life.Err() != nil, errors.Is(context.Cause(ctx), backend.ErrClosed), errors.Is(err, backend.ErrClosed):
		// This includes a call in progress that got another error first.
		return true, backend.ErrClosed
	case IsKind(err):
		return true, err
	}
	if none, ok := errors.AsType[*UnconnectedError](err); ok {
		return false, none
	}
	return false, Cause(ctx, err)
}

// Check is what to check when a connection ends without an answer, or none was made. Client libraries report no more than
// that when only one side uses TLS.
const Check = "check the address, and that the URL says whether the server uses TLS"

// UnconnectedError is the error of a request that had no connection when its context ended. It was not sent.
type UnconnectedError struct {
	Why string // the error of the last attempt to connect to one of the endpoints
	Err error  // the cause of the context
}

// Error returns why there was no connection, what to check, and the cause of the context.
func (e *UnconnectedError) Error() string { return e.Why + ": " + Check + " (" + e.Err.Error() + ")" }

// Unwrap returns the cause of the context.
func (e *UnconnectedError) Unwrap() error { return e.Err }

// IsDial reports whether there was no connection for a request, so that nothing was sent.
func IsDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// Lacks returns the error of a request that a store refuses for want of a right, which is named in the
// words of the store: "SELECT on the table holdfast.locks". name is the backend, and the page of its
// documentation. err is the store's own error; nil in a finding of Examine.
func Lacks(name, right string, err error) *backend.RefusedError {
	return &backend.RefusedError{
		Backend: name, Err: err, Reason: "the user lacks the right " + right,
		Remedy: "grant it, as under \"Least rights\" in docs/backends/" + name + ".md",
	}
}

// Unknown is the remedy for an answer with a code that a store does not list among those that pass: a code is
// permanent unless it is known to pass, so that no caller waits for what no retry mends.
const Unknown = "correct what the error of the store names"

// Refused returns err as a *backend.RefusedError if the store refuses this client until somebody changes
// something. name is the backend. remedy is what the store's own answer demands, or "". Failures of TLS are the same for all
// stores, and are recognised here.
func Refused(name string, err error, remedy string) error {
	if err == nil || errors.Is(err, backend.ErrRefused) {
		return err
	}
	if remedy == "" {
		remedy = ofTLS(name, err)
	}
	if remedy == "" {
		return err
	}
	return &backend.RefusedError{Backend: name, Remedy: remedy, Err: err}
}

// HTTPToTLS is what a server for HTTPS answers to plain text, with status 400: servers in Go do.
const HTTPToTLS = "Client sent an HTTP request to an HTTPS server"

// ofTLS returns what to change after a handshake that failed for good, or "". Some client libraries keep only
// the text of the error.
//
// An unknown authority and a wrong name stay until somebody changes the URL or the certificate. So does a
// certificate that has expired: no time mends it. One that is not valid yet becomes valid, as where the clock of
// this machine is late, and is waited for. So is a server that ends a handshake: it may be restarting.
func ofTLS(name string, err error) string {
	const (
		trust  = "name the certificate authority of the server with ca"
		host   = "use a name that is in the certificate of the server, or set server_name"
		client = "give a client certificate with cert and key that the server accepts"
	)
	plain, secure := schemes(name)
	for _, c := range []struct{ remedy, with string }{
		{trust, "certificate signed by unknown authority"},
		{trust, "certificate is not trusted"},
		{host, "x509: certificate is valid for"},
		{host, "x509: certificate is not valid for any names"},
		{host, "x509: certificate relies on legacy Common Name field"},
		{host, "x509: cannot validate certificate for"},
		{client, "tls: certificate required"},
		{client, "tls: bad certificate"},
		{client, "tls: unknown certificate authority"},
		{plain, "tls: first record does not look like a TLS handshake"},
		{plain, "server gave HTTP response to HTTPS client"},
		{secure, HTTPToTLS},
		{secure, "error reading server preface: http2: frame too large"},
	} {
		if strings.Contains(err.Error(), c.with) {
			return c.remedy
		}
	}
	// The text is "certificate has expired or is not yet valid: current time T1 is after T2".
	if _, when, ok := strings.Cut(err.Error(), "x509: certificate has expired or is not yet valid"); ok && !strings.Contains(when, " is before ") {
		return "renew the certificate"
	}
	return ""
}

// schemes returns what to change in the URL of a store, by its name: for a server without TLS, and for one
// with it.
func schemes(name string) (string, string) {
	switch name {
	case "zookeeper":
		return "set tls=false, or use the port with TLS", "set tls=true, or use the port without TLS"
	case "kubernetes":
		return "use http:// as the server in the kubeconfig, or the port with TLS", "use https:// as the server in the kubeconfig"
	}
	return "use " + name + ":// for a server without TLS, or the port with it", "use " + name + "s:// for a server with TLS, or the port without it"
}
