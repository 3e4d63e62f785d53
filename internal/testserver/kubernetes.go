//go:build unix

package testserver

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// KubernetesServer is an API server of Kubernetes of its own, on a free loopback port, with an
// etcd behind it and nothing else of a cluster: no nodes, no controllers. A client with the
// token may do everything. The methods fail the test when they fail; they belong to the test's
// goroutine.
type KubernetesServer struct {
	t      testing.TB
	binary string
	dir    string
	port   int
	token  string
	locker string // the token of a user without rights
	etcd   *Etcd
	proc   *Process
}

// Kubernetes starts a server. It ends with the test.
func Kubernetes(t testing.TB) *KubernetesServer {
	t.Helper()
	return KubernetesOn(t, StartEtcd(t, EtcdOptions{NoFsync: true})[0])
}

// KubernetesOn starts a server that stores everything in an etcd, or through one member of it.
// It ends with the test.
func KubernetesOn(t testing.TB, etcd *Etcd) *KubernetesServer {
	t.Helper()
	s := &KubernetesServer{t: t, binary: Tool(t, "kube-apiserver"), dir: Dir(t), port: FreePort(t), token: rand.Text(), locker: rand.Text(), etcd: etcd}
	const bits = 2048
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err == nil {
		block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
		err = errors.Join(
			os.WriteFile(s.path("sa.key"), pem.EncodeToMemory(block), 0o600),
			os.WriteFile(s.path("tokens.csv"), []byte(s.token+",admin,admin,system:masters\n"+s.locker+",locker,locker\n"), 0o600),
		)
	}
	if err != nil {
		t.Fatalf("testserver: kube-apiserver: %v", err)
	}
	s.Start()
	return s
}

func (s *KubernetesServer) path(file string) string { return filepath.Join(s.dir, file) }

// Addr is the address, "127.0.0.1:port". It speaks TLS.
func (s *KubernetesServer) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Token is the bearer token that may do everything.
func (s *KubernetesServer) Token() string { return s.token }

// CA is the file of the certificate that the server shows, which is good for 127.0.0.1.
func (s *KubernetesServer) CA() string { return s.path("certs/apiserver.crt") }

// Process is the current run, to be killed, stopped and continued.
func (s *KubernetesServer) Process() *Process { return s.proc }

// Etcd is the etcd in which the server stores everything.
func (s *KubernetesServer) Etcd() *Etcd { return s.etcd }

// Start starts a server that was ended again.
func (s *KubernetesServer) Start() {
	s.t.Helper()
	key := s.path("sa.key")
	s.proc = Start(s.t, Command{
		Path: s.binary, Dir: s.dir, Interrupt: syscall.SIGKILL,
		Args: []string{
			"--etcd-servers=http://" + s.etcd.Addr(), "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
			"--secure-port=" + strconv.Itoa(s.port), "--cert-dir=" + s.path("certs"),
			"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + key,
			"--service-account-signing-key-file=" + key, "--service-cluster-ip-range=10.0.0.0/24",
			"--authorization-mode=RBAC", "--token-auth-file=" + s.path("tokens.csv"), "--endpoint-reconciler-type=none",
		},
	})
	s.proc.Await(startTimeout, s.ready)
}

// Restart kills the server with SIGKILL and starts it again on the same address, with its data.
func (s *KubernetesServer) Restart() {
	s.t.Helper()
	s.proc.Kill()
	s.Start()
}

// Namespace makes a namespace.
func (s *KubernetesServer) Namespace(name string) {
	s.t.Helper()
	body := `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + name + `"}}`
	if text, err := s.ask(s.t.Context(), http.MethodPost, "/api/v1/namespaces", body); err != nil {
		s.t.Fatalf("testserver: namespace %s: %v: %s", name, err, text)
	}
}

// Locker is the token of the user "locker", which has no permissions before Allow.
func (s *KubernetesServer) Locker() string { return s.locker }

// Allow lets the locker do something with the Leases of a namespace: "get", "list".
func (s *KubernetesServer) Allow(namespace string, verbs ...string) {
	s.t.Helper()
	const api = "rbac.authorization.k8s.io"
	path := "/apis/" + api + "/v1/namespaces/" + namespace
	role := fmt.Sprintf(`{"metadata":{"name":"locker"},"rules":[{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["%s"]}]}`, strings.Join(verbs, `","`))
	binding := fmt.Sprintf(`{"metadata":{"name":"locker"},"roleRef":{"apiGroup":%q,"kind":"Role","name":"locker"},"subjects":[{"apiGroup":%q,"kind":"User","name":"locker"}]}`, api, api)
	for kind, body := range map[string]string{"/roles": role, "/rolebindings": binding} {
		if text, err := s.ask(s.t.Context(), http.MethodPost, path+kind, body); err != nil {
			s.t.Fatalf("testserver: %s: %v: %s", kind, err, text)
		}
	}
}

// Kubeconfig is the path of a file that says how to reach the server, by another address
// where one is given, as through a proxy.
func (s *KubernetesServer) Kubeconfig(addr string) string {
	s.t.Helper()
	path := filepath.Join(Dir(s.t), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts:
- name: test
  context: {cluster: test, user: admin, namespace: default}
clusters:
- name: test
  cluster: {server: "https://%s", certificate-authority: %q}
users:
- name: admin
  user: {token: %q}
`, addr, s.CA(), s.token)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatalf("testserver: kubeconfig: %v", err)
	}
	return path
}

// ask sends a request as the administrator.
func (s *KubernetesServer) ask(ctx context.Context, method, path, body string) (string, error) {
	cert, err := os.ReadFile(s.CA())
	if err != nil {
		return "", fmt.Errorf("certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, method, "https://"+s.Addr()+path, strings.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("request: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	req.Header.Set("Content-Type", "application/json")
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return "", fmt.Errorf("ask: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if res.StatusCode >= http.StatusMultipleChoices {
		err = errors.Join(err, errors.New(res.Status))
	}
	return string(text), err
}

// ready reports whether the server that was started answers: it alone knows the token.
func (s *KubernetesServer) ready(ctx context.Context) error {
	if _, err := s.ask(ctx, http.MethodGet, "/readyz", ""); err != nil {
		return err
	}
	_, err := s.ask(ctx, http.MethodGet, "/api/v1/namespaces/default", "")
	return err
}
