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
	"testing"

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

// The subject of a valid token is a principal of its issuer only. That an issuer does not answer is no refusal.
func TestIssuedTokens(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(issuerPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	away := &backend.UnavailableError{Backend: "https://ci.example.com", Op: "read"}
	f, err := access.Open(path, access.Options{Verify: func(_ context.Context, by access.Issuer, token string) (string, error) {
		if want := map[string]string{"https://ci.example.com": "holdfast", "http://127.0.0.1:6443": "locks"}[by.URL]; by.Audience != want {
			t.Errorf("asked about %+v", by)
		}
		switch token[strings.LastIndex(token, ".")+1:] {
		case "stranger":
			return "repo:other", nil
		case "away":
			return "", away
		case "bad":
			return "", errors.New("another key has signed it")
		}
		return "repo:shop:main", nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	for token, want := range map[string]string{
		jwt("https://ci.example.com", "x"): "deploy", jwt("http://127.0.0.1:6443", "x"): "job", jwt("https://ci.example.com", "bad"): "",
		jwt("https://ci.example.com", "stranger"): "", jwt("https://other.example.com", "x"): "", "a.b.c": "", "..": "",
	} {
		got, err := f.Identify(bearer(token))
		if got != want || (err == nil) != (want != "") || want == "" && !errors.Is(err, server.ErrUnauthenticated) {
			t.Errorf("%s is %q, %v; want %q", token, got, err, want)
		}
		if err := f.Authorize(got, server.Action{Verb: server.Acquire, Name: "n"}); (err == nil) != (want != "") || want == "" && !errors.Is(err, server.ErrUnauthenticated) {
			t.Errorf("%s: %v", token, err)
		}
	}
	if _, err := f.Identify(bearer(jwt("https://ci.example.com", "away"))); !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, server.ErrUnauthenticated) {
		t.Errorf("without its issuer: %v; want ErrUnavailable", err)
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
