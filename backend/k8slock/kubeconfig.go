package k8slock

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/conns"
)

// cluster is how to reach an API server, and as which user.
type cluster struct {
	server, namespace string
	serverName        string
	insecure          bool
	ca, cert, key     []byte
	token, tokenFile  string
	proxy             string
}

func badFile(field, value, bound string) error {
	return &backend.InvalidError{Field: field, Value: strconv.QuoteToGraphic(value), Bound: bound}
}

// podFolder is where a pod finds its service account.
const podFolder = "/var/run/secrets/kubernetes.io/serviceaccount"

// inCluster returns the cluster of the pod that this process runs in.
func inCluster(folder, host, port string) (*cluster, error) {
	ca, err := os.ReadFile(filepath.Join(folder, "ca.crt")) //nolint:gosec // of the pod
	if err != nil {
		return nil, badFile("service account", folder, "a folder with ca.crt, token and namespace")
	}
	c := &cluster{server: "https://" + net.JoinHostPort(host, port), ca: ca, tokenFile: filepath.Join(folder, "token")}
	if ns, err := os.ReadFile(filepath.Join(folder, "namespace")); err == nil { //nolint:gosec // of the pod
		c.namespace = strings.TrimSpace(string(ns))
	}
	return c, nil
}

// kubeconfig is the part of the file that is used here.
type kubeconfig struct {
	CurrentContext string `json:"current-context"`
	Contexts       []struct {
		Name    string `json:"name"`
		Context struct {
			Cluster   string `json:"cluster"`
			User      string `json:"user"`
			Namespace string `json:"namespace"`
		} `json:"context"`
	} `json:"contexts"`
	Clusters []struct {
		Name    string `json:"name"`
		Cluster struct {
			Server     string `json:"server"`
			ServerName string `json:"tls-server-name"`
			Insecure   bool   `json:"insecure-skip-tls-verify"`
			CA         string `json:"certificate-authority"`
			CAData     []byte `json:"certificate-authority-data"`
			Proxy      string `json:"proxy-url"`
		} `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		Name string   `json:"name"`
		User kubeUser `json:"user"`
	} `json:"users"`
}

type kubeUser struct {
	Token     string          `json:"token"`
	TokenFile string          `json:"tokenFile"`
	Cert      string          `json:"client-certificate"`
	CertData  []byte          `json:"client-certificate-data"`
	Key       string          `json:"client-key"`
	KeyData   []byte          `json:"client-key-data"`
	Username  string          `json:"username"`
	Exec      json.RawMessage `json:"exec"`
	Provider  json.RawMessage `json:"auth-provider"`
}

// readKubeconfig reads one context of a file: the current one if name is empty.
func readKubeconfig(path, name string) (*cluster, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the file that the caller names
	if err != nil {
		return nil, badFile("kubeconfig", path, "a file that can be read")
	}
	return parseKubeconfig(text, path, name)
}

// parseKubeconfig parses the text of a file.
func parseKubeconfig(text []byte, path, name string) (*cluster, error) {
	var k kubeconfig
	if err := yaml.Unmarshal(text, &k); err != nil {
		return nil, badFile("kubeconfig", path, "a kubeconfig in YAML") // the parser's error may contain a secret
	}
	if name == "" {
		name = k.CurrentContext
	}
	for _, x := range k.Contexts {
		if x.Name != name {
			continue
		}
		c := &cluster{namespace: x.Context.Namespace}
		err := k.server(c, filepath.Dir(path), x.Context.Cluster)
		if err == nil {
			err = k.user(c, filepath.Dir(path), x.Context.User)
		}
		return c, err
	}
	return nil, badFile("context", name, "one of the kubeconfig")
}

func (k *kubeconfig) server(c *cluster, folder, name string) error {
	for _, x := range k.Clusters {
		if x.Name != name {
			continue
		}
		var err error
		c.server, c.serverName, c.insecure, c.proxy = x.Cluster.Server, x.Cluster.ServerName, x.Cluster.Insecure, x.Cluster.Proxy
		c.ca, err = content(folder, "certificate-authority", x.Cluster.CA, x.Cluster.CAData)
		return err
	}
	return badFile("cluster", name, "one of the kubeconfig")
}

func (k *kubeconfig) user(c *cluster, folder, name string) error {
	for _, x := range k.Users {
		if x.Name != name {
			continue
		}
		if x.User.Exec != nil || x.User.Provider != nil || x.User.Username != "" {
			return badFile("user", name, "with a token or a certificate; for what else there is, give New a client of client-go, or use kubectl proxy")
		}
		c.token = x.User.Token
		if x.User.TokenFile != "" {
			c.tokenFile = below(folder, x.User.TokenFile)
		}
		var err error
		if c.cert, err = content(folder, "client-certificate", x.User.Cert, x.User.CertData); err != nil {
			return err
		}
		c.key, err = content(folder, "client-key", x.User.Key, x.User.KeyData)
		return err
	}
	if name == "" {
		return nil
	}
	return badFile("user", name, "one of the kubeconfig")
}

func below(folder, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(folder, path)
}

// content returns data, or the content of the file if there is none.
func content(folder, field, path string, data []byte) ([]byte, error) {
	if len(data) > 0 || path == "" {
		return data, nil
	}
	b, err := os.ReadFile(below(folder, path))
	if err != nil {
		return nil, badFile(field, path, "a file that can be read")
	}
	return b, nil
}

// transport uses HTTP/2 if the server supports it, on one connection, and soon detects when that is
// dead.
func (c *cluster) transport() (*conns.HTTP, error) {
	const idle, ping = 90 * time.Second, 5 * time.Second
	t := conns.NewHTTP(&net.Dialer{Timeout: attempt, KeepAlive: ping})
	t.ForceAttemptHTTP2, t.IdleConnTimeout, t.MaxIdleConnsPerHost, t.TLSHandshakeTimeout = true, idle, 16, attempt
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: ping, PingTimeout: ping}
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.serverName, InsecureSkipVerify: c.insecure} //nolint:gosec // the kubeconfig says so
	if c.proxy != "" {
		return nil, badFile("proxy-url", c.proxy, "left out; HTTPS_PROXY is used")
	}
	if len(c.ca) > 0 {
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(c.ca) {
			return nil, badFile("certificate-authority", "…", "certificates in PEM")
		}
	}
	if len(c.cert) > 0 {
		cert, err := tls.X509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, badFile("client-certificate", "…", "a certificate and its key in PEM")
		}
		t.TLSClientConfig.Certificates = []tls.Certificate{cert}
	}
	return t, nil
}

// bearer adds a token to each request. It reads the token again from its file at most once a minute:
// a pod's lives for an hour.
type bearer struct {
	next  http.RoundTripper
	token string
	file  string

	mu   sync.Mutex
	read time.Time
}

// RoundTrip sends the request with the token.
func (t *bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	token := t.current()
	if token == "" {
		return t.next.RoundTrip(req) //nolint:wrapcheck // it stands in for the transport
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+token)
	return t.next.RoundTrip(req) //nolint:wrapcheck // it stands in for the transport
}

// CloseIdleConnections is that of the transport.
func (t *bearer) CloseIdleConnections() {
	(&http.Client{Transport: t.next}).CloseIdleConnections()
}

func (t *bearer) current() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == "" || !t.read.IsZero() && time.Since(t.read) < time.Minute {
		return t.token
	}
	if b, err := os.ReadFile(t.file); err == nil {
		t.token, t.read = strings.TrimSpace(string(b)), time.Now()
	}
	return t.token
}
