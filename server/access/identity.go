package access

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/holdfast-io/holdfast/server"
)

// maxToken bounds a token, in bytes.
const maxToken = 4096

// Identify returns the principal that sent a request: see "Identity".
//
// Errors: server.ErrUnauthenticated, with what is missing or unknown; *backend.UnavailableError when the
// issuer of the token does not answer. They never contain a token.
func (p *Policy) Identify(r *http.Request) (string, error) {
	if header, ok := r.Header["Authorization"]; ok {
		return p.ofToken(r.Context(), header)
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return p.ofCertificate(r.TLS.VerifiedChains[0][0])
	}
	if uid, ok := server.PeerUID(r.Context()); ok {
		if name, known := p.byUID[uid]; known {
			return name, nil
		}
		return "", unauthenticated("no principal has the user ID %d", uid)
	}
	return "", unauthenticated("send a client certificate, or a token in the Authorization header")
}

func (p *Policy) ofToken(ctx context.Context, header []string) (string, error) {
	if len(header) != 1 {
		return "", unauthenticated("there is more than one Authorization header")
	}
	scheme, token, ok := strings.Cut(header[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || len(token) > maxToken {
		return "", unauthenticated("the Authorization header must be Bearer and a token")
	}
	// The table is searched for the hash, so the time that this takes tells nothing about a token.
	if name, known := p.byToken[sha256.Sum256([]byte(token))]; known {
		return name, nil
	}
	if p.issued.mayHave(token) {
		return p.issued.principal(ctx, token)
	}
	return "", unauthenticated("the token is that of no principal")
}

// ofCertificate finds the principal of a certificate that the TLS handshake has verified.
func (p *Policy) ofCertificate(cert *x509.Certificate) (string, error) {
	names := make([]certName, 0, len(cert.DNSNames)+len(cert.URIs)+len(cert.EmailAddresses))
	for _, name := range cert.DNSNames {
		names = append(names, certName{isDNS, lower(name)})
	}
	for _, u := range cert.URIs {
		names = append(names, certName{isURI, foldURI(u)})
	}
	for _, address := range cert.EmailAddresses {
		names = append(names, certName{isEmail, foldEmail(address)})
	}
	for _, name := range names {
		if principal, known := p.byName[name]; known {
			return principal, nil
		}
	}
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = n.text
	}
	return "", unauthenticated("no principal has one of the names in the client certificate: %.200q", texts)
}

// certName is a name in a client certificate. Names of two kinds are never the same: an authority may be limited to
// names of one kind.
type certName struct {
	kind nameKind
	text string // as it is compared
}

type nameKind int

const (
	isDNS nameKind = iota
	isURI
	isEmail
)

// nameOf returns the name that a policy means: one with a ":" is a URI, and one with an "@" an e-mail address. It reports
// whether there is one.
func nameOf(text string) (certName, bool) {
	switch {
	case strings.Contains(text, "*"): // it would stand for itself
		return certName{}, false
	case strings.Contains(text, ":"):
		u, err := url.Parse(text)
		if err != nil {
			return certName{}, false
		}
		return certName{isURI, foldURI(u)}, true
	case strings.Contains(text, "@"):
		return certName{isEmail, foldEmail(text)}, true
	}
	return certName{isDNS, lower(text)}, strings.TrimSpace(text) != ""
}

// foldURI lowers the host (url.Parse has lowered the scheme), and keeps the rest: paths of SPIFFE IDs are compared
// with case.
func foldURI(u *url.URL) string {
	folded := *u
	folded.Host = lower(u.Host)
	return folded.String()
}

// foldEmail lowers the domain, and keeps the local part (RFC 5321, 2.4).
func foldEmail(address string) string {
	at := strings.LastIndex(address, "@") + 1
	return address[:at] + lower(address[at:])
}

// lower lowers ASCII letters only: strings.ToLower makes a "k" of the Kelvin sign.
func lower(text string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, text)
}

func unauthenticated(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{server.ErrUnauthenticated}, args...)...)
}

// Authorize decides whether a principal may do something, as server.Config.Authorize does.
func (p *Policy) Authorize(principal string, a server.Action) error {
	verb, open := verbOf(a)
	switch {
	case open:
		return nil
	case principal == "":
		return server.ErrUnauthenticated
	case verb == "":
		return nil
	}
	if d := p.Decide(principal, verb, a.Name); !d.Allowed {
		return errors.New(d.Why) //nolint:err113 // for the client, which reads the text
	}
	return nil
}

// verbOf returns the verb that an action needs; empty: to be identified is enough. open: not even that.
func verbOf(a server.Action) (Verb, bool) {
	switch a.Verb {
	case server.Acquire, server.Renew, server.Release, server.RenewMany, server.Batch:
		return Acquire, false
	case server.Read, server.List, server.Watch:
		return Read, false
	case server.Break:
		return Break, false
	case server.Status:
		return "", a.Path != "/metrics"
	case server.SignIn:
		return "", false
	}
	return unknown, false
}
