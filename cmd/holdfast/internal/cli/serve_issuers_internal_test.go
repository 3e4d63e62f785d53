package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/coreos/go-oidc/v3/oidc/oidctest"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/server/access"
)

// provider is an issuer on the loopback.
type provider struct {
	url      string
	key      *ecdsa.PrivateKey
	requests atomic.Int64
	down     atomic.Bool
	serves   atomic.Pointer[oidctest.Server]
}

func startProvider(t *testing.T) *provider {
	t.Helper()
	p := new(provider)
	p.rotate(t, "first")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.requests.Add(1)
		if p.down.Load() {
			http.Error(w, "down", http.StatusBadGateway)
			return
		}
		p.serves.Load().ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	p.url = srv.URL
	p.serves.Load().SetIssuer(srv.URL)
	return p
}

// rotate replaces the key.
func (p *provider) rotate(t *testing.T, id string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := &oidctest.Server{Algorithms: []string{oidc.ES256}, PublicKeys: []oidctest.PublicKey{{PublicKey: key.Public(), KeyID: id, Algorithm: oidc.ES256}}}
	s.SetIssuer(p.url)
	p.key = key
	p.serves.Store(s)
}

func (p *provider) token(t *testing.T, keyID string, change func(claims map[string]any)) string {
	t.Helper()
	claims := map[string]any{"iss": p.url, "aud": "holdfast", "sub": "job", "exp": time.Now().Add(time.Hour).Unix()}
	change(claims)
	text, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	return oidctest.SignIDToken(p.key, keyID, oidc.ES256, string(text))
}

func same(map[string]any) {}

// A token is valid if its issuer signed it for this server, and it has not expired.
func TestTokensOfIssuers(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	s, by := newIssuers(0), access.Issuer{URL: p.url, Audience: "holdfast"}
	subject, err := s.verify(t.Context(), by, p.token(t, "first", same))
	if err != nil || subject != "job" {
		t.Fatalf("%q, %v", subject, err)
	}
	stranger := startProvider(t)
	for name, token := range map[string]string{
		"another audience": p.token(t, "first", func(c map[string]any) { c["aud"] = "billing" }),
		"expired":          p.token(t, "first", func(c map[string]any) { c["exp"] = time.Now().Add(-time.Minute).Unix() }),
		"another issuer":   p.token(t, "first", func(c map[string]any) { c["iss"] = "https://example.com" }),
		"another key":      stranger.token(t, "first", func(c map[string]any) { c["iss"] = p.url }),
		"unsigned":         "eyJhbGciOiJub25lIn0." + strings.Split(p.token(t, "first", same), ".")[1] + ".",
		"no token":         "a.b.c",
	} {
		subject, err := s.verify(t.Context(), by, token)
		if err == nil || errors.Is(err, backend.ErrUnavailable) || strings.Contains(err.Error(), token) {
			t.Errorf("%s: %q, %v; want an error that says why", name, subject, err)
		}
	}
	p.rotate(t, "second")
	leasetest.Succeeds(t, func() error { // a fetch of the keys that is just ending may still have the old ones
		_, err := s.verify(t.Context(), by, p.token(t, "second", same))
		return err
	})
}

// An issuer that does not answer is unavailable, which is not a refusal, and it is not asked for each token.
func TestIssuerIsAway(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	p.down.Store(true)
	by := access.Issuer{URL: p.url, Audience: "holdfast"}
	patient := newIssuers(time.Hour)
	for range 5 {
		if _, err := patient.verify(t.Context(), by, p.token(t, "first", same)); !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("while it is down: %v; want ErrUnavailable", err)
		}
	}
	if n := p.requests.Load(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
	hasty := newIssuers(0)
	_, err := hasty.verify(t.Context(), by, p.token(t, "first", same))
	if !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("while it is down: %v; want ErrUnavailable", err)
	}
	p.down.Store(false)
	if _, err := hasty.verify(t.Context(), by, p.token(t, "first", same)); err != nil {
		t.Errorf("when it is up again: %v", err)
	}
	// The keys are known. A token with a key that is not needs a request, which fails.
	p.down.Store(true)
	if _, err := hasty.verify(t.Context(), by, p.token(t, "first", same)); err != nil {
		t.Errorf("with keys that are known: %v", err)
	}
	if _, err := hasty.verify(t.Context(), by, p.token(t, "another", same)); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("with a key that may be new: %v; want ErrUnavailable", err)
	}
	// An invented key causes no request soon after another, and says nothing about a token with a new key.
	p.down.Store(false)
	calm := newIssuers(time.Hour)
	if _, err := calm.verify(t.Context(), by, p.token(t, "first", same)); err != nil {
		t.Fatal(err)
	}
	before := p.requests.Load()
	invented := p.token(t, "invented", same)
	p.rotate(t, "second")
	for _, token := range []string{invented, p.token(t, "second", same)} {
		_, err := calm.verify(t.Context(), by, token)
		if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || away.RetryAfter == 0 {
			t.Errorf("with a key that may be new: %v; want ErrUnavailable, and when to try again", err)
		}
	}
	if n := p.requests.Load() - before; n != 0 {
		t.Errorf("%d requests for unknown keys, want 0", n)
	}
}
