package k8slock_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// kubeconfig writes a file whose current context has this user.
func kubeconfig(t *testing.T, server, user string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`current-context: a
contexts: [{name: a, context: {cluster: c, user: u, namespace: team}}, {name: b, context: {cluster: none, user: u}}, {name: strange, context: {cluster: c, user: none}}]
clusters: [{name: c, cluster: %s}]
users: [{name: u, user: %s}]`, server, user)
	write(t, path, text)
	return path
}

// TestOpenRefuses: the error names what is wrong with a URL or a file, and contains no secret of
// it.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	const server = `{server: "https://127.0.0.1:1"}`
	file := func(server, user string) string { return "kubernetes://?kubeconfig=" + kubeconfig(t, server, user) }
	bad := filepath.Join(t.TempDir(), "bad")
	write(t, bad, "token: hunter2\n\tx: {")
	for field, url := range map[string]string{
		"url": "kubernetes://a/b", "url ": "kubernetes://user:hunter2@host", "url  ": "kubernetes://a?x=1", "url   ": "kubernetes://a?context=a&context=b",
		"url    ": "kubernetes://a#b", "url     ": "k8s://a",
		"foreign":     "kubernetes://a?foreign=1s",
		"namespace":   "kubernetes://Team?kubeconfig=" + kubeconfig(t, server, "{}"),
		"kubeconfig":  "kubernetes://a?kubeconfig=/not/there",
		"kubeconfig ": "kubernetes://a?kubeconfig=" + bad,
		"context":     file(server, "{}") + "&context=other",
		"cluster":     file(server, "{}") + "&context=b",
		"context ":    file(server, "{exec: {command: login}}"),
		"context  ":   file(server, "{token: hunter2, username: a, password: hunter2}"),
		"context   ":  file(server, "{client-certificate: not-there, client-key: not-there}"),
		"context    ": file(`{server: "https://127.0.0.1:1", certificate-authority: not-there}`, "{}"),
		"user":        file(server, "{}") + "&context=strange",
		"config":      file(server, "{client-certificate-data: aHVudGVyMg==, client-key-data: aHVudGVyMg==}"),
		"config ":     file(`{server: "https://127.0.0.1:1", certificate-authority-data: aHVudGVyMg==}`, "{}"),
		"config  ":    file(server, "{auth-provider: {name: gcp, config: {access-token: hunter2}}}"),
		"config   ":   file(server, "{exec: {apiVersion: v0, command: login, interactiveMode: Never, args: [hunter2]}}"),
		"server":      file(`{server: "127.0.0.1:1"}`, "{token: hunter2}"),
		"server ":     file(`{server: "https://a:hunter2@127.0.0.1:1"}`, "{token: hunter2}"),
		"proxy-url":   file(`{server: "https://127.0.0.1:1", proxy-url: "ftp://a:hunter2@x"}`, "{}"),
		"proxy-url ":  file(`{server: "https://127.0.0.1:1", proxy-url: "http://a:hunter2@[x"}`, "{}"),
	} {
		_, err := k8slock.Open(t.Context(), url, k8slock.Config{})
		invalid, ok := errors.AsType[*backend.InvalidError](err)
		if !ok || invalid.Field != strings.TrimRight(field, " ") || strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("%s: %v", url, err)
		}
	}
	for name, config := range map[string]*rest.Config{
		"none": nil, "a transport": {Host: "https://a", Transport: http.DefaultTransport}, "a dialer": {Host: "https://a", Dial: new(net.Dialer).DialContext},
	} {
		_, err := k8slock.NewForConfig(config, k8slock.Config{})
		if invalid, ok := errors.AsType[*backend.InvalidError](err); !ok || invalid.Field != "config" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for field, c := range map[string]struct {
		client *http.Client
		server string
		cfg    k8slock.Config
	}{
		"client":    {nil, "https://a", k8slock.Config{}},
		"client ":   {&http.Client{Timeout: time.Second}, "https://a", k8slock.Config{}},
		"server":    {http.DefaultClient, "https://user:hunter2@a", k8slock.Config{}},
		"namespace": {http.DefaultClient, "https://a", k8slock.Config{Namespace: "a.b"}},
		"foreign":   {http.DefaultClient, "https://a", k8slock.Config{Foreign: time.Second}},
	} {
		_, err := k8slock.New(c.client, c.server, c.cfg)
		invalid, ok := errors.AsType[*backend.InvalidError](err)
		if !ok || invalid.Field != strings.TrimRight(field, " ") || strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestPod: the configuration of a pod, whose token is in a file.
func TestPod(t *testing.T) {
	t.Parallel()
	server := kubernetes()
	server.Namespace("pods")
	folder := filepath.Dir(writeToken(t, server.Token()))
	ca, err := os.ReadFile(server.CA())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, "ca.crt"), string(ca))
	write(t, filepath.Join(folder, "namespace"), "pods")
	host, port, _ := strings.Cut(server.Addr(), ":")
	b, err := k8slock.OpenInPod(folder, host, port)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	leasetest.Take(t, b, leasetest.Ask("a", leasetest.Session(t, b, time.Minute, nil)))
	c := &bench{T: t, server: server, namespace: "pods"}
	if text := c.send(http.MethodGet, "/a", ""); !strings.Contains(text, `"holderIdentity":"holdfast_`) {
		t.Errorf("the lock is not in the pod's namespace: %s", text)
	}
	if _, err := k8slock.OpenInPod(t.TempDir(), host, port); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("a folder without a certificate: %v", err)
	}
}

func writeToken(t *testing.T, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	write(t, path, token+"\n")
	return path
}
