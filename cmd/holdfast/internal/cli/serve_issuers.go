package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/server"
	"github.com/holdfast-io/holdfast/server/access"
)

const (
	issuerTimeout = 5 * time.Second
	// issuerPause is the shortest time between two requests to an issuer: tokens with invented keys would
	// otherwise cause one each.
	issuerPause = 10 * time.Second
)

// issuers verifies tokens with the keys that their issuers publish. The keys are read when the first token
// needs them, and again for a token with another key.
type issuers struct {
	pause time.Duration

	mu  sync.Mutex
	all map[access.Issuer]*issuer
}

// issuer is one of them. open holds a value while its description is being read.
type issuer struct {
	client   *http.Client
	open     chan struct{}
	verifier *oidc.IDTokenVerifier // guarded by open
}

func newIssuers(pause time.Duration) *issuers {
	return &issuers{pause: pause, all: make(map[access.Issuer]*issuer)}
}

// verify is an access.Verifier.
func (s *issuers) verify(ctx context.Context, by access.Issuer, token string) (string, error) {
	i, err := s.of(by)
	if err != nil {
		return "", err
	}
	v, err := i.ready(ctx, by)
	if err != nil {
		return "", err
	}
	var away error
	id, err := v.Verify(context.WithValue(ctx, awayKey{}, &away), token)
	if away != nil {
		return "", unreadable(by, away)
	}
	if expired, ok := errors.AsType[*oidc.TokenExpiredError](err); ok {
		return "", fmt.Errorf("%w at %s", server.ErrExpired, expired.Expiry.UTC().Format(time.RFC3339))
	}
	if err != nil {
		return "", err
	}
	return id.Subject, nil
}

func (s *issuers) of(by access.Issuer) (*issuer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.all[by]; i != nil {
		return i, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if by.CA != "" {
		var err error
		if conf.RootCAs, err = connect.Roots(by.CA); err != nil {
			return nil, unreadable(by, err)
		}
	}
	i := &issuer{client: &http.Client{Transport: newPaced(conf, s.pause), Timeout: issuerTimeout, CheckRedirect: connect.Stay}, open: make(chan struct{}, 1)}
	s.all[by] = i
	return i, nil
}

// ready returns the verifier, for which the issuer must have answered once.
func (i *issuer) ready(ctx context.Context, by access.Issuer) (*oidc.IDTokenVerifier, error) {
	select {
	case i.open <- struct{}{}:
		defer func() { <-i.open }()
	case <-ctx.Done():
		return nil, unreadable(by, context.Cause(ctx))
	}
	if i.verifier == nil {
		// What is made here keeps its context for its requests, so it must not end with this one.
		ctx := oidc.ClientContext(context.WithoutCancel(ctx), i.client)
		var conf struct {
			Keys string   `json:"jwks_uri"`
			Algs []string `json:"id_token_signing_alg_values_supported"`
		}
		p, err := oidc.NewProvider(ctx, by.URL)
		if err == nil {
			err = p.Claims(&conf)
		}
		if err != nil {
			return nil, unreadable(by, err)
		}
		i.verifier = oidc.NewVerifier(by.URL, keySet{oidc.NewRemoteKeySet(ctx, conf.Keys)}, &oidc.Config{
			ClientID:             by.Audience,
			SupportedSigningAlgs: slices.DeleteFunc(conf.Algs, func(a string) bool { return !slices.Contains(algorithms(), a) }),
		})
	}
	return i.verifier, nil
}

// algorithms are those with a public key.
func algorithms() []string {
	return []string{
		oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA,
	}
}

// keySet reports an *awayError to whoever has put an error in the context under awayKey: the verifier keeps
// only its text.
type keySet struct{ keys oidc.KeySet }

type awayKey struct{}

// VerifySignature implements oidc.KeySet.
func (s keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	text, err := s.keys.VerifySignature(ctx, token)
	if away, ok := errors.AsType[*awayError](err); ok {
		*ctx.Value(awayKey{}).(*error) = away //nolint:forcetypeassert // see verify
	}
	return text, err
}

func unreadable(by access.Issuer, err error) error {
	return &backend.UnavailableError{Backend: by.URL, Op: "read the keys for tokens", RetryAfter: issuerPause, Err: err}
}

// paced sends a request only when the one before it to the same path is some time ago. That it sends none, or that the
// issuer does not answer, or not with 200, is an *awayError: whether an unknown key is new or invented is not known then.
type paced struct {
	base  *http.Transport
	pause time.Duration

	mu   sync.Mutex
	last map[string]attempt // by path
}

type attempt struct {
	at  time.Time
	err error
}

type awayError struct{ error }

// Unwrap returns the reason.
func (e *awayError) Unwrap() error { return e.error }

var (
	errPaced  = errors.New("the key of the token is unknown, and the keys of the issuer were read a moment ago: try again")
	errStatus = errors.New("it answered with another status than 200")
)

func newPaced(conf *tls.Config, pause time.Duration) *paced {
	t := connect.NewHTTP(&net.Dialer{Timeout: issuerTimeout})
	t.TLSClientConfig = conf
	return &paced{base: t.Transport, pause: pause, last: make(map[string]attempt)}
}

// RoundTrip implements http.RoundTripper.
func (p *paced) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	last, asked := p.last[r.URL.Path]
	if asked && time.Since(last.at) < p.pause {
		p.mu.Unlock()
		return nil, cmp.Or[error](last.err, &awayError{errPaced})
	}
	p.last[r.URL.Path] = attempt{time.Now(), nil}
	p.mu.Unlock()
	res, err := p.base.RoundTrip(r)
	if err == nil && res.StatusCode != http.StatusOK {
		_ = res.Body.Close()
		err = fmt.Errorf("%w: %s", errStatus, res.Status)
	}
	if err == nil {
		return res, nil
	}
	err = &awayError{err}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last[r.URL.Path] = attempt{time.Now(), err}
	return nil, err
}
