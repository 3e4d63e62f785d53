package k8slock

import (
	"cmp"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/holdfast-io/holdfast/internal/connect"
)

// Open makes a backend with connections of its own, which Close closes:
//
//	kubernetes://[namespace][?kubeconfig=file&context=name&foreign=10m]
//
// Without kubeconfig it reads the files that KUBECONFIG names, merged as kubectl does; in a pod the
// service account, unless context is given; and otherwise ~/.kube/config. The default namespace is
// that of the pod or of the context, and "default" otherwise. foreign is that of Config.
// Nothing is sent until the first call.
//
// Every credential of a kubeconfig works, a login program (exec) included. The program cannot read
// the standard input, and a program that hangs delays no call beyond its context.
//
// Errors: *backend.InvalidError for a bad URL, such as one with an unknown parameter, and for a
// file that cannot be used.
func Open(ctx context.Context, rawURL string, cfg Config) (*Backend, error) {
	if err := connect.Context(ctx); err != nil {
		return nil, err
	}
	t, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	config, namespace, err := t.config()
	if err != nil {
		return nil, err
	}
	cfg.Namespace = cmp.Or(t.namespace, cfg.Namespace, namespace)
	cfg.Foreign = cmp.Or(t.foreign, cfg.Foreign)
	return NewForConfig(config, cfg)
}

// Client returns the HTTP client that Open would use, and the URL of the Leases of the namespace:
// for requests that are not about locks, with the same connection settings and rights.
// CloseIdleConnections of the client ends it. Nothing is sent. Errors: those of Open.
func Client(rawURL string) (*http.Client, string, error) {
	b, err := Open(context.Background(), rawURL, Config{})
	if err != nil {
		return nil, "", err
	}
	return b.rest.client, b.rest.leases, nil
}

// target is the content of a URL.
type target struct {
	namespace, kubeconfig, context string
	foreign                        time.Duration
}

func parseURL(raw string) (target, error) {
	var t target
	if strings.ContainsFunc(raw, unicode.IsControl) {
		return t, connect.URLError(connect.Hidden, "without control characters")
	}
	text, ok := strings.CutPrefix(raw, "kubernetes://")
	if !ok {
		return t, connect.URLError(connect.Hidden, "kubernetes://namespace")
	}
	if strings.ContainsRune(text, '#') {
		return t, connect.URLError("#", "without a fragment")
	}
	text, query, _ := strings.Cut(text, "?")
	t.namespace = strings.TrimSuffix(text, "/")
	if strings.ContainsAny(t.namespace, "/@:") {
		return t, connect.URLError(connect.Hidden, "kubernetes://namespace: the API server is in the kubeconfig")
	}
	params, err := connect.Params(query, "kubeconfig", "context", "foreign")
	if err != nil {
		return t, err
	}
	t.kubeconfig, t.context = params.Get("kubeconfig"), params.Get("context")
	if err := connect.Duration(params, "foreign", &t.foreign); err != nil {
		return t, err
	}
	if params.Has("foreign") && (t.foreign < minForeign || t.foreign > maxForeign) {
		return t, connect.ParamError("foreign", params.Get("foreign"), "a duration of "+minForeign.String()+" to "+maxForeign.String())
	}
	return t, nil
}

// config finds the API server and the namespace.
func (t target) config() (*rest.Config, string, error) {
	files := &clientcmd.ClientConfigLoadingRules{ExplicitPath: t.kubeconfig, Precedence: filepath.SplitList(os.Getenv("KUBECONFIG"))}
	if t.kubeconfig == "" && len(files.Precedence) == 0 {
		if host := os.Getenv("KUBERNETES_SERVICE_HOST"); host != "" && t.context == "" {
			config, namespace := podConfig(podFolder, host, os.Getenv("KUBERNETES_SERVICE_PORT"))
			return config, namespace, nil
		}
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, "", badFile("kubeconfig", "", "given: there is no home directory")
		}
		files.Precedence = []string{filepath.Join(home, ".kube", "config")}
	}
	return readKubeconfig(files, t.context)
}
