package k8slock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/internal/certs"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// as opens a backend as this user of the server.
func as(t *testing.T, server *testserver.KubernetesServer, user string) *k8slock.Backend {
	t.Helper()
	cluster := fmt.Sprintf(`{server: "https://%s", certificate-authority: %q}`, server.Addr(), server.CA())
	b, err := k8slock.Open(t.Context(), "kubernetes://default?kubeconfig="+kubeconfig(t, cluster, user), k8slock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// login is a user whose login program is a shell script.
func login(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "login")
	write(t, path, script)
	return fmt.Sprintf(`{exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: IfAvailable, command: sh, args: [%q]}}`, path)
}

// credential is what a login program prints.
func credential(token string) string {
	return fmt.Sprintf(`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":%q}}`, token)
}

// works opens a session, takes a lock and renews.
func works(t *testing.T, b *k8slock.Backend, id backend.SessionID) {
	t.Helper()
	if err := leasetest.InsistOn(t, func(ctx context.Context) error {
		return b.OpenSession(ctx, backend.SessionRequest{ID: id, TTL: time.Minute})
	}); err != nil {
		t.Fatal(err)
	}
	leasetest.Take(t, b, leasetest.Ask(string(backend.NewLeaseID()), id))
	if res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id}); err != nil || res.SessionLost {
		t.Fatalf("Renew: %+v, %v", res, err)
	}
}

// TestLoginProgram: the token is what a login program prints. A token that the API server refuses is
// replaced by what the program prints then.
func TestLoginProgram(t *testing.T) {
	t.Parallel()
	server := kubernetes()
	printed := filepath.Join(t.TempDir(), "printed")
	write(t, printed, credential("expired-token"))
	b := as(t, server, login(t, "cat "+printed))
	id := backend.NewSessionID()
	err := b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: id, TTL: time.Minute})
	if !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "401") || strings.Contains(err.Error(), "expired-token") {
		t.Errorf("with a token that has expired: %v", err)
	}
	write(t, printed, credential(server.Token()))
	works(t, b, id)
}

// TestLoginProgramFails: the error names the program, and contains nothing that it printed.
func TestLoginProgramFails(t *testing.T) {
	t.Parallel()
	server := kubernetes()
	const head = `echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",`
	for script, want := range map[string]string{
		"echo hunter2; exit 3": "exit code 3",
		"echo hunter2":         "ExecCredential",
		head + `"status":{"expirationTimestamp":"hunter2"}}'`: "ExecCredential", // client-go quotes it
		`echo '{"status":{"token":"hunter2"}}'`:               "plugin returned version",
	} {
		err := as(t, server, login(t, script)).OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
		if !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", script, err)
		}
	}
}

// TestLoginProgramHangs: calls end with their contexts, and Close does not wait.
func TestLoginProgramHangs(t *testing.T) {
	t.Parallel()
	const soon = 20 * time.Second
	server := kubernetes()
	hangs := filepath.Join(t.TempDir(), "hangs") // the program ends when the test's folder is removed
	write(t, hangs, "")
	b := as(t, server, login(t, "while [ -e "+hangs+" ]; do sleep 0.1; done; echo '"+credential(server.Token())+"'"))
	asked := time.Now()
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := b.OpenSession(ctx, backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
		if !errors.Is(err, backend.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("OpenSession: %v", err)
		}
		cancel()
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(asked); d > soon {
		t.Errorf("three calls of 0.3 seconds and Close took %s", d)
	}
}

// TestTokenFileRotates: a token that was replaced in its file is sent within a minute.
func TestTokenFileRotates(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	server := kubernetes()
	path := writeToken(t, "expired-token")
	b := as(t, server, "{tokenFile: "+path+"}")
	open := func() error {
		return b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
	}
	if err := open(); !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "401") || strings.Contains(err.Error(), "expired-token") {
		t.Errorf("with a token that has expired: %v", err)
	}
	write(t, path, server.Token()+"\n")
	for end := time.Now().Add(2 * time.Minute); open() != nil && time.Now().Before(end); {
		time.Sleep(time.Second)
	}
	works(t, b, backend.NewSessionID())
}

// TestKubeconfigsAreMerged: KUBECONFIG names several files. One does not exist, one has the
// contexts, another the user, whose paths are relative to it. The first one wins.
func TestKubeconfigsAreMerged(t *testing.T) {
	server := kubernetes()
	server.Namespace("merged")
	dir := t.TempDir()
	contexts, users := filepath.Join(dir, "contexts"), filepath.Join(filepath.Dir(writeToken(t, server.Token())), "users")
	write(t, contexts, "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u, namespace: merged}}]")
	write(t, users, fmt.Sprintf(`current-context: b
contexts: [{name: a, context: {cluster: none, user: none}}]
users: [{name: u, user: {tokenFile: token}}]
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %q}}]`, server.Addr(), server.CA()))
	t.Setenv("KUBECONFIG", strings.Join([]string{filepath.Join(dir, "none"), contexts, users}, string(os.PathListSeparator)))
	b, err := k8slock.Open(t.Context(), "kubernetes://", k8slock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	id := backend.NewSessionID()
	works(t, b, id)
	c := &bench{T: t, server: server, namespace: "merged"}
	if text := c.send(http.MethodGet, "", ""); !strings.Contains(text, string(id)) {
		t.Errorf("the session is not in the context's namespace: %s", text)
	}
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	if _, err := k8slock.Open(t.Context(), "kubernetes://", k8slock.Config{}); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "kubeconfig") {
		t.Errorf("without any file: %v", err)
	}
}

// TestProxyOfKubeconfig: requests go through the proxy that the kubeconfig names.
func TestProxyOfKubeconfig(t *testing.T) {
	t.Parallel()
	server := kubernetes()
	var tunnels atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tunnels.Add(1)
		if r.Method != http.MethodConnect || r.Host != server.Addr() {
			t.Errorf("%s %s", r.Method, r.Host)
		}
		w.WriteHeader(http.StatusBadGateway)
	}))
	defer proxy.Close()
	cluster := fmt.Sprintf(`{server: "https://%s", certificate-authority: %q, proxy-url: %q}`, server.Addr(), server.CA(), proxy.URL)
	b, err := k8slock.Open(t.Context(), "kubernetes://default?kubeconfig="+kubeconfig(t, cluster, "{token: "+server.Token()+"}"), k8slock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	err = b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
	if tunnels.Load() == 0 || !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("nothing went through the proxy: %v", err)
	}
}

// TestCloseUnderWay: Close ends every connection while the server answers neither the watch nor a
// request.
func TestCloseUnderWay(t *testing.T) {
	t.Parallel()
	const soon = 30 * time.Second
	server := kubernetes()
	proxy := chaos.Start(t, server.Addr())
	b, id := open(t, server.Kubeconfig(proxy.Addr())), backend.NewSessionID()
	defer b.Close()
	works(t, b, id)
	proxy.BlackHole()
	renewed := make(chan error, 1)
	go func() {
		_, err := b.Renew(t.Context(), backend.RenewRequest{Session: id})
		renewed <- err
	}()
	select {
	case err := <-renewed:
		t.Fatalf("Renew while the server hangs: %v", err)
	case <-time.After(200 * time.Millisecond): // it is under way
	}
	if b.Connections() == 0 {
		t.Error("there is no connection to end")
	}
	asked := time.Now()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if d, n := time.Since(asked), b.Connections(); d > soon || n > 0 {
		t.Errorf("Close took %s, and %d connections are left", d, n)
	}
	if err := <-renewed; !errors.Is(err, backend.ErrClosed) {
		t.Errorf("Renew: %v", err)
	}
}

// TestClientCertificateRotates: the API server refuses the certificate with which a connection was
// made, as when it has expired. Requests use the new one of the files.
func TestClientCertificateRotates(t *testing.T) {
	t.Parallel()
	api := &apiServer{leases: make(map[string]map[string]any), version: 1}
	var accepted atomic.Value
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS.PeerCertificates[0].Subject.CommonName != accepted.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		api.ServeHTTP(w, r)
	}))
	server.TLS, server.EnableHTTP2 = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}, true
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	authority, err := certs.New("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	rotate := func(name string) {
		pair, err := authority.Issue(certs.Client, name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, cert, string(pair.Cert))
		write(t, key, string(pair.Key))
		accepted.Store(name)
	}
	rotate("first")
	config := kubeconfig(t, `{server: "`+server.URL+`", insecure-skip-tls-verify: true}`, fmt.Sprintf("{client-certificate: %q, client-key: %q}", cert, key))
	b, err := k8slock.Open(t.Context(), "kubernetes://default?kubeconfig="+config, k8slock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	id := backend.NewSessionID()
	works(t, b, id)
	for _, name := range []string{"second", "third"} {
		rotate(name)
		if _, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id}); !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "401") {
			t.Errorf("the first request after the rotation: %v", err)
		}
		works(t, b, id)
	}
}
