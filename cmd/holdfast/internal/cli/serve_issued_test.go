//go:build unix

package cli_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/coreos/go-oidc/v3/oidc/oidctest"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// A server with a policy knows the principal of a token that an OpenID provider has signed, and lets it do what its
// grants allow. TestTokensOfIssuers has the tokens that are refused.
func TestServeWithAnIssuer(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	provider := &oidctest.Server{Algorithms: []string{oidc.ES256}, PublicKeys: []oidctest.PublicKey{{PublicKey: key.Public(), KeyID: "k", Algorithm: oidc.ES256}}}
	front := httptest.NewServer(provider)
	t.Cleanup(front.Close)
	provider.SetIssuer(front.URL)

	dir := testserver.Dir(t)
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	policy := put("policy.yaml", fmt.Sprintf(`
issuers: {ci: {url: %q, audience: holdfast}}
principals: {deploy: {subjects: {ci: ["repo:shop:main"]}}}
grants: [{to: [deploy], locks: [team-a], verbs: [acquire, read]}]
`, front.URL))
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	server := testserver.Start(t, testserver.Command{Path: binary, Args: []string{
		"serve", "--listen", addr, "--data-dir", filepath.Join(dir, "data"), "--policy", policy, "-q",
	}})
	server.Await(time.Minute, func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	as := func(subject string, args ...string) result {
		t.Helper()
		claims := fmt.Sprintf(`{"iss":%q,"aud":"holdfast","sub":%q,"exp":%d}`, front.URL, subject, time.Now().Add(time.Hour).Unix())
		return steadily(func() result {
			cmd := command(t, "holdfast://"+addr, args...)
			cmd.Env = append(cmd.Env, "HOLDFAST_TOKEN_FILE="+put("token", oidctest.SignIDToken(key, "k", oidc.ES256, claims)))
			return run(t, cmd)
		})
	}
	const subject = "repo:shop:main"
	await(t, 2*time.Minute, "the server has read the keys of the issuer", func() bool {
		r := as(subject, "acquire", "team-a/x", "--try", "--ttl", "1h")
		return r.status == 0 || r.status == 75 // an earlier attempt had no answer in time
	})
	if r := as(subject, "acquire", "team-b/x", "--try"); r.status != 74 || !strings.Contains(r.stderr, "no grant allows deploy") {
		t.Errorf("without a grant: %+v", r)
	}
	if r := as("repo:other", "ls"); r.status != 74 || !strings.Contains(r.stderr, "credentials") || strings.Contains(r.out, "team-a") {
		t.Errorf("another subject: %+v", r)
	}
}
