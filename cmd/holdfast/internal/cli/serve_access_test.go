//go:build unix

package cli_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/certs"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// A server with a policy tells its clients apart by token, client certificate and user, also after the
// policy, the certificate, the authorities and the token were replaced; a lock stays held all the while.
func TestServeWithPolicy(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	put := func(name, text string) string {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	authority, err := certs.New("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(by *certs.Authority, name string, hosts ...string) {
		p, err := by.Issue(certs.Node, "", hosts...)
		if err != nil {
			t.Fatal(err)
		}
		put(name+".pem", string(p.Cert))
		put(name+".key", string(p.Key))
	}
	issue(authority, "server", "127.0.0.1")
	issue(authority, "app", "app.example.com")
	ca := put("ca.pem", string(authority.PEM()))
	policy := func(token string) string {
		sum := sha256.Sum256([]byte(token))
		return fmt.Sprintf(`
principals: {app: {certificates: [app.example.com]}, job: {tokens: [%s]}}
grants:
- {to: [app], locks: [team-a], verbs: [acquire, read]}
- {to: [job], locks: ["*"], verbs: [read, break]}
limits: [{to: [app], locks: 1}]
`, hex.EncodeToString(sum[:]))
	}
	file := put("policy.yaml", policy("first"))
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	server := testserver.Start(t, testserver.Command{Path: binary, Args: []string{
		"serve", "--listen", addr, "--data-dir", at("data"), "--policy", file,
		"--tls-cert", at("server.pem"), "--tls-key", at("server.key"), "--tls-client-ca", ca,
	}})
	token := put("token", "first\n")
	app := "holdfasts://" + addr + "?ca=" + ca + "&cert=" + at("app.pem") + "&key=" + at("app.key")
	job := "holdfasts://" + addr + "?ca=" + ca
	as := func(url string, args ...string) result {
		t.Helper()
		cmd := command(t, url, args...)
		if url == job {
			cmd.Env = append(cmd.Env, "HOLDFAST_TOKEN_FILE="+token)
		}
		return run(t, cmd)
	}
	server.Await(time.Minute, func(ctx context.Context) error {
		return exec.CommandContext(ctx, binary, "ls", "--backend", app).Run()
	})
	if r := as(app, "acquire", "team-a/x", "--ttl", "10m"); r.status != 0 {
		t.Fatalf("with a grant: %+v", r)
	}
	if r := as(app, "acquire", "team-b/x", "--try"); r.status != 74 || !strings.Contains(r.stderr, "no grant allows app") {
		t.Errorf("without a grant: %+v", r)
	}
	if r := as(app, "acquire", "team-a/y", "--try"); r.status != 74 || !strings.Contains(r.stderr, "may hold: 1") {
		t.Errorf("beyond a limit: %+v", r)
	}
	audited(t, server, `"act":"refused","principal":"app"`, `"lock":"team-b/x"`)
	if r := as(job, "ls"); r.status != 0 || !strings.Contains(r.out, "team-a/x") {
		t.Errorf("with a token: %+v", r)
	}
	if r := run(t, command(t, job, "ls")); r.status != 74 || !strings.Contains(r.stderr, "credentials") {
		t.Errorf("without an identity: %+v", r)
	}
	// Everything is replaced. Half of a certificate is not used. The token in the file is still the old one for a moment.
	put("policy.yaml", policy("second"))
	put("server.pem", "half")
	server.Await(time.Minute, func(context.Context) error {
		if !strings.Contains(server.Log(), "the certificates cannot be used") {
			return errors.New("the server has not seen the half")
		}
		return nil
	})
	if r := as(app, "ls"); r.status != 0 {
		t.Errorf("with half of a certificate: %+v", r)
	}
	issue(authority, "server", "127.0.0.1", "locks.example.com")
	put("token", "second")
	await(t, time.Minute, "the new token is known", func() bool { return as(job, "ls").status == 0 })
	await(t, time.Minute, "the new certificate is shown", func() bool {
		return as(app+"&server_name=locks.example.com", "ls").status == 0
	})
	other, err := certs.New("other", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	issue(other, "newer", "app.example.com")
	newer := "holdfasts://" + addr + "?ca=" + put("first-ca.pem", string(authority.PEM())) + "&cert=" + at("newer.pem") + "&key=" + at("newer.key")
	if r := as(newer, "ls"); r.status == 0 {
		t.Errorf("a client of another authority: %+v", r)
	}
	put("ca.pem", string(authority.PEM())+string(other.PEM()))
	await(t, time.Minute, "a client of the new authority gets in", func() bool { return as(newer, "ls").status == 0 })
	if r := as(job, "ls"); r.status != 0 || !strings.Contains(r.out, "team-a/x") {
		t.Errorf("the lock is still held: %+v", r)
	}
	if r := as(job, "break", "team-a/x", "--reason", "test", "--yes"); r.status != 0 {
		t.Errorf("break with the right: %+v", r)
	}
	audited(t, server, `"act":"break","principal":"job"`, `"lock":"team-a/x"`, `"reason":"test"`)
}

// The metrics report when the certificate expires that clients are shown, also after it was replaced.
func TestCertificateExpires(t *testing.T) {
	t.Parallel()
	dir := testserver.Dir(t)
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	conf := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool(), ServerName: "127.0.0.1"}
	issue := func(life time.Duration) {
		authority, err := certs.New("test", life)
		if err != nil {
			t.Fatal(err)
		}
		p, err := authority.Issue(certs.Server, "", "127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		conf.RootCAs.AppendCertsFromPEM(authority.PEM())
		if err := errors.Join(os.WriteFile(key, p.Key, 0o600), os.WriteFile(cert, p.Cert, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	issue(time.Hour)
	addr := fmt.Sprintf("127.0.0.1:%d", testserver.FreePort(t))
	testserver.Start(t, testserver.Command{Path: binary, Args: []string{
		"serve", "--listen", addr, "--data-dir", filepath.Join(dir, "data"), "--tls-cert", cert, "--tls-key", key,
	}})
	metric := regexp.MustCompile(`(?m)^holdfast_tls_certificate_expires_seconds (\S+)$`)
	left := func() time.Duration { // 0: not known
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
		res, err := client.Get("https://" + addr + "/metrics") //nolint:noctx // the server is on this host
		if err != nil {
			return 0
		}
		defer res.Body.Close()
		page, err := io.ReadAll(res.Body)
		found := metric.FindSubmatch(page)
		if err != nil || found == nil {
			return 0
		}
		at, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			t.Error(err)
		}
		return time.Until(time.Unix(int64(at), 0))
	}
	await(t, time.Minute, "the certificate expires within the hour", func() bool { d := left(); return d > 50*time.Minute && d <= time.Hour })
	issue(48 * time.Hour)
	await(t, time.Minute, "the next one expires after two days", func() bool { d := left(); return d > 47*time.Hour && d <= 48*time.Hour })
}

// A certificate that names no host says no names that clients may use.
func TestCertificateWithoutHosts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	authority, err := certs.New("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	p, err := authority.Issue(certs.Server, "locks.example.com")
	if err := errors.Join(err, os.WriteFile(key, p.Key, 0o600), os.WriteFile(cert, p.Cert, 0o600)); err != nil {
		t.Fatal(err)
	}
	serve := []string{"serve", "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(dir, "data"), "--tls-cert", cert, "--tls-key", key}
	if r := run(t, command(t, "", serve...)); r.status != 64 || !strings.Contains(r.stderr, "names no host") {
		t.Errorf("%+v", r)
	}
}

// audited waits until the server has written a line with the texts.
func audited(t *testing.T, server *testserver.Process, texts ...string) {
	t.Helper()
	server.Await(time.Minute, func(context.Context) error {
		for line := range strings.Lines(server.Log()) {
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
				return nil
			}
		}
		return fmt.Errorf("no line has %q:\n%s", texts, server.Log())
	})
}

// On a Unix socket the user is known. The socket of a server that was killed is replaced, one of a
// server that runs is not.
func TestServeOnASocket(t *testing.T) {
	t.Parallel()
	dir := testserver.Dir(t)
	socket, policy := filepath.Join(dir, "s"), filepath.Join(dir, "policy.yaml")
	text := fmt.Sprintf("principals: {me: {uids: [%d]}}\ngrants: [{to: [me], locks: [mine], verbs: [acquire, read]}]", os.Getuid())
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() *testserver.Process {
		s := testserver.Start(t, testserver.Command{Path: binary, Args: []string{
			"serve", "--listen", "unix:" + socket, "--data-dir", filepath.Join(dir, "data"), "--policy", policy, "-q",
		}})
		s.Await(time.Minute, func(ctx context.Context) error {
			return exec.CommandContext(ctx, binary, "ls", "--backend", "holdfast+unix://"+socket).Run()
		})
		return s
	}
	first := start()
	if r := run(t, command(t, "holdfast+unix://"+socket, "run", "mine", "--", "true")); r.status != 0 {
		t.Errorf("with a grant: %+v", r)
	}
	if r := run(t, command(t, "holdfast+unix://"+socket, "run", "theirs", "--", "true")); r.status == 0 {
		t.Errorf("without a grant: %+v", r)
	}
	if log := first.Log(); !strings.Contains(log, `"act":"refused","principal":"me"`) || strings.Contains(log, "serving") {
		t.Errorf("with -q the log has %s", log)
	}
	r := run(t, command(t, "", "serve", "--listen", "unix:"+socket, "--data-dir", filepath.Join(dir, "other")))
	if r.status != 1 || !strings.Contains(r.stderr, "another server") {
		t.Errorf("a second server: %+v", r)
	}
	first.Kill()
	start()
}

// A policy is checked and asked without a server.
func TestPolicyCommand(t *testing.T) {
	t.Parallel()
	good, bad := filepath.Join(t.TempDir(), "p.yaml"), filepath.Join(t.TempDir(), "p.yaml")
	for path, text := range map[string]string{
		good: "principals: {a: {}}\ngrants: [{to: [a], locks: [x], verbs: [acquire]}]", bad: "grants: [{to: [a], locks: [x], verbs: [acquire]}]",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"check", good}, 0, "1 principals"},
		{[]string{"check", bad}, 64, "grants[1].to"},
		{[]string{"check", good + ".none"}, 64, "no such file"},
		{[]string{"test", good, "a", "acquire", "x/1"}, 0, "grant 1"},
		{[]string{"test", good, "a", "acquire", "y"}, 1, "no grant"},
		{[]string{"test", good, "a", "read"}, 1, "no grant"},
		{[]string{"test", good, "b", "acquire", "x"}, 1, "no principal"},
		{[]string{"test", good, "a", "write", "x"}, 64, "VERB"},
	} {
		r := run(t, command(t, "", append([]string{"policy"}, c.args...)...))
		if r.status != c.status || !strings.Contains(r.out+r.stderr, c.says) {
			t.Errorf("policy %q: %+v, want %d and %q", c.args, r, c.status, c.says)
		}
	}
}
