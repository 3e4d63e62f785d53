package access_test

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/server"
	"github.com/holdfast-io/holdfast/server/access"
)

const issuerPolicy = `
issuers:
  ci: {url: "https://ci.example.com", audience: holdfast}
  k8s: {url: "http://127.0.0.1:6443", audience: locks}
principals:
  deploy: {subjects: {ci: ["repo:shop:main"]}}
  job: {subjects: {k8s: ["repo:shop:main"]}}
grants:
- {to: ["*"], locks: ["*"], verbs: [acquire]}
`

// jwt is a token that names its issuer. Nothing of it is signed: the Verifier of the test says what it is.
func jwt(issuer, more string) string {
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte("{}")) + "." + enc([]byte(`{"iss":`+strconv.Quote(issuer)+`}`)) + "." + more
}

func bearer(token string) *http.Request {
	return &http.Request{Header: http.Header{"Authorization": {"Bearer " + token}}}
}

// The subject of a valid token is a principal of its issuer only, and is asked for once while the token lasts.
func TestIssuedTokens(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(issuerPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	var fails atomic.Pointer[error]
	claims := access.Claims{Subject: "repo:shop:main", Expiry: time.Now().Add(time.Hour)}
	f, err := access.Open(path, access.Options{Verify: func(_ context.Context, by access.Issuer, token string) (access.Claims, error) {
		asked.Add(1)
		if err := fails.Load(); err != nil {
			return access.Claims{}, *err
		}
		if want := map[string]string{"https://ci.example.com": "holdfast", "http://127.0.0.1:6443": "locks"}[by.URL]; by.Audience != want {
			t.Errorf("asked about %+v", by)
		}
		c := claims
		if strings.HasSuffix(token, "stranger") {
			c.Subject = "repo:other"
		}
		return c, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	for token, want := range map[string]string{
		jwt("https://ci.example.com", "x"): "deploy", jwt("http://127.0.0.1:6443", "x"): "job",
		jwt("https://ci.example.com", "stranger"): "", jwt("https://other.example.com", "x"): "", "a.b.c": "", "..": "",
	} {
		if got := f.Principal(bearer(token)); got != want {
			t.Errorf("%s is %q, want %q", token, got, want)
		}
		if err := f.Authorize(bearer(token), server.Action{Verb: server.Acquire, Name: "n"}); (err == nil) != (want != "") || want == "" && !errors.Is(err, server.ErrUnauthenticated) {
			t.Errorf("%s: %v", token, err)
		}
	}
	if n := asked.Load(); n != 4 { // the two that are known once, the stranger twice
		t.Errorf("asked %d times, want 4", n)
	}
	away := error(&backend.UnavailableError{Backend: "https://ci.example.com", Op: "read"})
	fails.Store(&away)
	if got := f.Principal(bearer(jwt("https://ci.example.com", "x"))); got != "deploy" {
		t.Errorf("a token that is known, without its issuer: %q", got)
	}
	err = f.Authorize(bearer(jwt("https://ci.example.com", "new")), server.Action{Verb: server.Acquire, Name: "n"})
	if !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, server.ErrUnauthenticated) {
		t.Errorf("a token that is not known, without its issuer: %v; want ErrUnavailable", err)
	}
	// A request is identified twice. That it was refused is not forgotten because the keys cannot be read again yet.
	bad, wrong := bearer(jwt("https://ci.example.com", "bad")), errors.New("another key has signed it")
	fails.Store(&wrong)
	_ = f.Principal(bad)
	fails.Store(&away)
	if err := f.Authorize(bad, server.Action{Verb: server.Acquire, Name: "n"}); !errors.Is(err, server.ErrUnauthenticated) {
		t.Errorf("a token that was refused: %v; want ErrUnauthenticated", err)
	}
}

// A program that verifies no tokens of issuers refuses a policy with some.
func TestIssuersNeedAVerifier(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(issuerPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := access.Open(path, access.Options{}); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("%v; want ErrInvalid", err)
	}
}
