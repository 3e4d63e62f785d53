//go:build unix

package testserver

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
)

// KubernetesServer is an API server of Kubernetes of its own, on a free loopback port, with an
// etcd behind it and nothing else of a cluster: no nodes, no controllers. A client with the
// token may do everything. The methods fail the test when they fail; they belong to the test's
// goroutine.
type KubernetesServer struct {
	server

	etcd *Etcd
}

// Kubernetes starts a server. flags are added to its command line. It ends with the test.
func Kubernetes(t testing.TB, flags ...string) *KubernetesServer {
	t.Helper()
	return KubernetesOn(t, StartEtcd(t, EtcdOptions{Newest: true, NoFsync: true})[0], flags...)
}

// KubernetesOn starts a server that stores everything in an etcd, or through one member of it.
// It ends with the test.
func KubernetesOn(t testing.TB, etcd *Etcd, flags ...string) *KubernetesServer {
	t.Helper()
	o := options(t, flags...)
	o.Programs = tool(t, "kube-apiserver")
	s, err := launch.Kubernetes(o, etcd.Addr())
	return &KubernetesServer{started(t, s, err), etcd}
}

// Token is the bearer token that may do everything.
func (s *KubernetesServer) Token() string { return s.Secret }

// CA is the file of the certificate that the server shows, which is good for 127.0.0.1.
func (s *KubernetesServer) CA() string { return launch.KubernetesCA(s.Server) }

// Etcd is the etcd in which the server stores everything.
func (s *KubernetesServer) Etcd() *Etcd { return s.etcd }

// Namespace makes a namespace.
func (s *KubernetesServer) Namespace(name string) {
	s.t.Helper()
	body := `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"` + name + `"}}`
	_, err := launch.KubernetesCall(s.t.Context(), s.Server, http.MethodPost, "/api/v1/namespaces", body)
	check(s.t, err)
}

// Apply makes the objects of a YAML text in a namespace, or replaces them. Their names stand beside their kinds, in one line.
func (s *KubernetesServer) Apply(namespace, text string) {
	s.t.Helper()
	for object := range strings.SplitSeq(text, "---\n") {
		kind, name, group := "", "", ""
		for line := range strings.Lines(object) {
			if after, ok := strings.CutPrefix(line, "kind: "); ok {
				kind = strings.ToLower(strings.TrimSpace(after)) + "s"
			}
			if _, after, ok := strings.Cut(line, "metadata: {name: "); ok {
				name, _, _ = strings.Cut(after, ",")
			}
			if after, ok := strings.CutPrefix(line, "apiVersion: "); ok {
				if group = "/apis/" + strings.TrimSpace(after); group == "/apis/v1" {
					group = "/api/v1"
				}
			}
		}
		path := group + "/namespaces/" + namespace + "/" + kind
		if _, err := launch.KubernetesApply(s.t.Context(), s.Server, http.MethodPut, path+"/"+name, object); err != nil {
			_, err = launch.KubernetesApply(s.t.Context(), s.Server, http.MethodPost, path, object)
			check(s.t, err)
		}
	}
}

// KubeconfigAs is the path of a file with which the administrator acts as another user.
func (s *KubernetesServer) KubeconfigAs(user string) string {
	s.t.Helper()
	path := filepath.Join(Dir(s.t), "kubeconfig-as")
	text := strings.Replace(launch.Kubeconfig(s.Server, s.Addr()), "user: {token:", "user: {as: "+strconv.Quote(user)+", token:", 1)
	check(s.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// Kubeconfig is the path of a file that says how to reach the server, by another address
// where one is given, as through a proxy.
func (s *KubernetesServer) Kubeconfig(addr string) string {
	s.t.Helper()
	path := filepath.Join(Dir(s.t), "kubeconfig")
	check(s.t, os.WriteFile(path, []byte(launch.Kubeconfig(s.Server, addr)), 0o600))
	return path
}
