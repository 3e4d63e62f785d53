package access_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/certs"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/server"
	"github.com/holdfast-io/holdfast/server/access"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// policyFile writes a policy and opens it.
func policyFile(t *testing.T, text string, log io.Writer) (string, *access.File) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, path, text)
	f, err := access.Open(path, access.Options{Every: 10 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return path, f
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// serve serves a policy on ln.
func serve(t *testing.T, f *access.File, ln net.Listener, conf *tls.Config) {
	t.Helper()
	store := memlock.New()
	srv, err := server.New(store, server.Config{Identify: f.Identify, Authorize: f.Authorize, TLS: conf})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, store.Close()); err != nil {
			t.Error(err)
		}
	})
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// status sends a request and returns the status and the body.
func status(t *testing.T, c *http.Client, method, address, body, token string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		return res.StatusCode, ""
	}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// A file that has changed applies to the next request. One with an error does not.
func TestReload(t *testing.T) {
	t.Parallel()
	var log buffer
	path, f := policyFile(t, example(), &log)
	ln := listen(t, "tcp", "127.0.0.1:0")
	serve(t, f, ln, nil)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	lock := "http://" + ln.Addr().String() + "/v1/locks/billing%2Fx"
	ask := func(token string) int {
		got, _ := status(t, client, "POST", lock, `{"wait":"0s"}`, token)
		return got
	}
	const lease = "the-lease-of-billing"
	if got, body := status(t, client, "POST", lock, `{"ttl":"10m","lease":"`+lease+`"}`, "billing-1"); got != 200 {
		t.Fatalf("before: %d %s", got, body)
	}
	if got := ask("billing-2"); got != 409 {
		t.Errorf("with the other token: %d, want 409", got)
	}
	write(t, path, "grants: 7")
	log.await(t, "has an error")
	if !f.Stale() {
		t.Error("with an error in the file it is not stale")
	}
	if got := ask("billing-1"); got != 409 {
		t.Errorf("with an error in the file: %d, want 409 of the policy before", got)
	}
	write(t, path, strings.Replace(example(), "locks: [billing, ", "locks: [", 1))
	log.await(t, "was changed")
	if f.Stale() {
		t.Error("it is stale")
	}
	if got := ask("billing-1"); got != 403 {
		t.Errorf("without the grant: %d, want 403", got)
	}
	for _, method := range []string{"PUT", "DELETE"} {
		if got, body := status(t, client, method, lock+"/leases/"+lease, "", "billing-1"); got != 403 {
			t.Errorf("%s of its lease without the grant: %d %s", method, got, body)
		}
	}
	for _, at := range []string{lock, strings.TrimSuffix(lock, "/billing%2Fx")} { // for who may break it
		if got, body := status(t, client, "GET", at, "", "oncall"); got != 200 || !strings.Contains(body, lease) {
			t.Errorf("%s: %d %s", at, got, body)
		}
	}
	write(t, path, strings.Replace(example(), hash("billing-1"), hash("billing-3"), 1))
	leasetest.Eventually(t, "the new token is known", func() bool { return ask("billing-3") != 401 })
	if got := ask("billing-1"); got != 401 {
		t.Errorf("with a token that was withdrawn: %d, want 401", got)
	}
}

// A verified client certificate is an identity, by each of its names. A token goes before it.
func TestCertificate(t *testing.T) {
	t.Parallel()
	authority, err := certs.New("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	pair := func(hosts ...string) tls.Certificate {
		p, err := authority.Issue(certs.Node, "", hosts...)
		if err != nil {
			t.Fatal(err)
		}
		c, err := tls.X509KeyPair(p.Cert, p.Key)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	_, f := policyFile(t, example(), io.Discard)
	ln := listen(t, "tcp", "127.0.0.1:0")
	serve(t, f, ln, &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair("127.0.0.1")}, ClientCAs: roots, ClientAuth: tls.VerifyClientCertIfGiven,
	})
	for _, c := range []struct {
		hosts []string
		token string
		want  int
	}{
		{[]string{"billing.example.com"}, "", 200},
		{[]string{"other.example.com", "BILLING.example.com"}, "", 200},
		{[]string{"other.example.com"}, "", 401},
		{nil, "", 401},
		{[]string{"billing.example.com"}, "scrape", 403},
		{[]string{"billing.example.com"}, "unknown", 401},
	} {
		conf := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
		if c.hosts != nil {
			conf.Certificates = []tls.Certificate{pair(c.hosts...)}
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
		if got, body := status(t, client, "GET", "https://"+ln.Addr().String()+"/v1/locks/billing", "", c.token); got != c.want {
			t.Errorf("%v with the token %q: %d, want %d: %s", c.hosts, c.token, got, c.want, body)
		}
	}
}

// The host in a name of a certificate is compared without case. The path of a SPIFFE ID and the local part of an address
// are compared as they are, and a name of one kind is none of another: an authority may be limited to one kind.
func TestCertificateNames(t *testing.T) {
	t.Parallel()
	p := parse(t, `
principals:
  dns: {certificates: [Ka.example.com]}
  spiffe: {certificates: ["spiffe://Example.com/ns/Prod?a=B"]}
  urn: {certificates: ["URN:Team:a"]}
  mail: {certificates: ["Ops@Example.com"]}
`)
	uri := func(text string) *x509.Certificate {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return &x509.Certificate{URIs: []*url.URL{u}}
	}
	dns := func(name string) *x509.Certificate { return &x509.Certificate{DNSNames: []string{name}} }
	mail := func(name string) *x509.Certificate { return &x509.Certificate{EmailAddresses: []string{name}} }
	for _, c := range []struct {
		what string
		cert *x509.Certificate
		want string
	}{
		{"a DNS name", dns("KA.EXAMPLE.com"), "dns"},
		{"a DNS name with the Kelvin sign", dns("\u212aa.example.com"), ""},
		{"a URI that is a DNS name", uri("ka.example.com"), ""},
		{"an address that is a DNS name", mail("ka.example.com"), ""},
		{"a SPIFFE ID", uri("SPIFFE://EXAMPLE.com/ns/Prod?a=B"), "spiffe"},
		{"another path", uri("spiffe://example.com/ns/prod?a=B"), ""},
		{"another query", uri("spiffe://example.com/ns/Prod?a=b"), ""},
		{"a URN", uri("urn:Team:a"), "urn"},
		{"another URN", uri("urn:team:a"), ""},
		{"an address", mail("Ops@EXAMPLE.com"), "mail"},
		{"another local part", mail("ops@example.com"), ""},
		{"a URI that is an address", uri("Ops@example.com"), ""},
		{"a DNS name that is an address", dns("Ops@example.com"), ""},
	} {
		r := &http.Request{TLS: &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{c.cert}}}}
		got, err := p.Identify(r)
		if got != c.want || (got == "") != errors.Is(err, server.ErrUnauthenticated) {
			t.Errorf("%s: %q, %v; want %q", c.what, got, err, c.want)
		}
	}
}

// On a Unix socket the user at the other end is an identity.
func TestUser(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	uid := strconv.Itoa(os.Getuid())
	policy, f := policyFile(t, strings.Replace(example(), "uids: [1001]", "uids: ["+uid+"]", 1), io.Discard)
	serve(t, f, listen(t, "unix", path), nil)
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
	if got, body := status(t, client, "GET", "http://localhost/v1/locks/billing", "", ""); got != 200 {
		t.Errorf("user %s: %d %s", uid, got, body)
	}
	write(t, policy, example()) // the user is no principal now, unless the test runs as 1001
	leasetest.Eventually(t, "the user is not known any more", func() bool {
		got, _ := status(t, client, "GET", "http://localhost/v1/locks/billing", "", "")
		return got == 401 || uid == "1001"
	})
}

// A file that is not there, or has an error, cannot be opened.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if _, err := access.Open(path, access.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	write(t, path, "grants: 7")
	if _, err := access.Open(path, access.Options{}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("an error in the file: %v", err)
	}
}

// buffer is a log that can be waited for.
type buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// await waits for a text.
func (b *buffer) await(t *testing.T, text string) {
	t.Helper()
	leasetest.Eventually(t, "the log has "+strconv.Quote(text), func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return strings.Contains(b.text.String(), text)
	})
}
