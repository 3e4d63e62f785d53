//go:build unix

package launch

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
)

// Kubernetes returns an API server, with nothing else of a cluster: no nodes, no controllers. It
// stores everything in the etcd at an address. It speaks TLS. A client with its Secret may do everything.
func Kubernetes(o Options, etcd string) (*Server, error) {
	s, err := o.server("kube-apiserver", "", "")
	if err != nil {
		return nil, err
	}
	const bits = 2048
	private, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		return nil, fmt.Errorf("a key of kube-apiserver: %w", err)
	}
	s.Diskless, s.Secret = true, rand.Text()
	err = s.write(map[string]string{
		"sa.key":     string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)})),
		"tokens.csv": s.Secret + ",admin,admin,system:masters\n",
		"kubeconfig": Kubeconfig(s, s.addr),
	})
	if err != nil {
		return nil, err
	}
	s.URL = "kubernetes://default?kubeconfig=" + s.Path("kubeconfig")
	s.command.Argv = slices.Concat(s.command.Argv, []string{
		"--etcd-servers=http://" + etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--secure-port=" + Port(s.addr), "--cert-dir=" + s.Path("certs"), "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + s.Path("sa.key"), "--service-account-signing-key-file=" + s.Path("sa.key"),
		"--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC", "--token-auth-file=" + s.Path("tokens.csv"),
		"--endpoint-reconciler-type=none",
	}, o.Args)
	// The server that was started alone knows the token.
	s.ready = func(ctx context.Context, _ *Process) error {
		if _, err := KubernetesCall(ctx, s, http.MethodGet, "/readyz", ""); err != nil {
			return err
		}
		_, err := KubernetesCall(ctx, s, http.MethodGet, "/api/v1/namespaces/default", "")
		return err
	}
	return s, nil
}

// KubernetesCA returns the file of the certificate that an API server shows, which is good for
// 127.0.0.1. The server writes it when it starts.
func KubernetesCA(s *Server) string { return s.Path("certs/apiserver.crt") }

// Kubeconfig returns the text of a file that says how to reach an API server as its administrator, at
// its own address or at that of a proxy.
func Kubeconfig(s *Server, addr string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: local
contexts:
- name: local
  context: {cluster: local, user: admin, namespace: default}
clusters:
- name: local
  cluster: {server: "https://%s", certificate-authority: %q}
users:
- name: admin
  user: {token: %q}
`, addr, KubernetesCA(s), s.Secret)
}

// KubernetesCall sends a request as the administrator, and returns the body of the answer.
func KubernetesCall(ctx context.Context, s *Server, method, path, body string) (string, error) {
	return kubernetesCall(ctx, s, method, path, "application/json", body)
}

// KubernetesApply is KubernetesCall with a body in YAML.
func KubernetesApply(ctx context.Context, s *Server, method, path, body string) (string, error) {
	return kubernetesCall(ctx, s, method, path, "application/yaml", body)
}

func kubernetesCall(ctx context.Context, s *Server, method, path, kind, body string) (string, error) {
	cert, err := os.ReadFile(KubernetesCA(s))
	if err != nil {
		return "", fmt.Errorf("certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	req, err := http.NewRequestWithContext(ctx, method, "https://"+s.addr+path, strings.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("make the request: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Secret)
	req.Header.Set("Content-Type", kind)
	return call(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}, req)
}
