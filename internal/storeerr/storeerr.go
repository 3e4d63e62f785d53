// Package storeerr has what all backends do when they turn an error of a client library into one of package
// backend.
package storeerr

import (
	"context"
	"errors"
	"fmt"
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

// Of returns true and the error of a call as its caller gets it, if that is known: nil, an error of
// package backend, or backend.ErrClosed once life has ended. Otherwise it returns false and the cause
// of a *backend.UnavailableError: see Cause.
func Of(ctx, life context.Context, err error) (bool, error) {
	switch {
	case err == nil:
		return true, nil
	case life.Err() != nil, errors.Is(context.Cause(ctx), backend.ErrClosed), errors.Is(err, backend.ErrClosed):
		// This includes a call in progress that got another error first.
		return true, backend.ErrClosed
	case IsKind(err):
		return true, err
	}
	return false, Cause(ctx, err)
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

// Refused returns err as a *backend.RefusedError if the store refuses this client until somebody changes
// something. name is the backend. remedy is what the store's own answer demands, or "". Failures of TLS are the same for all
// stores, and are recognised here.
func Refused(name string, err error, remedy string) error {
	if err == nil || errors.Is(err, backend.ErrRefused) {
		return err
	}
	if remedy == "" {
		remedy = ofTLS(err)
	}
	if remedy == "" {
		return err
	}
	return &backend.RefusedError{Backend: name, Remedy: remedy, Err: err}
}

// ofTLS returns what to change after a handshake that failed for good. Some client libraries keep only
// the text of the error.
func ofTLS(err error) string {
	for _, c := range []struct{ remedy, with string }{
		{"name the certificate authority of the server with ca", "certificate signed by unknown authority"},
		{"name the certificate authority of the server with ca", "certificate is not trusted"},
		{"use a name that is in the certificate of the server, or set server_name", "x509: certificate is valid for"},
		{"use a name that is in the certificate of the server, or set server_name", "x509: cannot validate certificate for"},
		{"renew the certificate", "x509: certificate has expired or is not yet valid"},
		{"give a client certificate with cert and key that the server accepts", "tls: certificate required"},
		{"give a client certificate with cert and key that the server accepts", "tls: bad certificate"},
		{"give a client certificate with cert and key that the server accepts", "tls: unknown certificate authority"},
		{"use the scheme without TLS, or the port with it", "tls: first record does not look like a TLS handshake"},
		{"use the scheme without TLS, or the port with it", "server gave HTTP response to HTTPS client"},
		{"use the scheme with TLS", "Client sent an HTTP request to an HTTPS server"},
		{"use the scheme with TLS", "error reading server preface: http2: frame too large"},
	} {
		if strings.Contains(err.Error(), c.with) {
			return c.remedy
		}
	}
	return ""
}
