package k8slock

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/holdfast-io/holdfast/internal/conns"
	"github.com/holdfast-io/holdfast/internal/storeurl"
)

// Open makes a backend with a client of its own, which Close closes:
//
//	kubernetes://[namespace][?kubeconfig=file&context=name&foreign=10m&skew=1m]
//
// Without kubeconfig it searches like kubectl: the first file that KUBECONFIG names; in a pod the
// service account, unless context is given; ~/.kube/config. The default namespace is that of the
// pod or of the context, and "default" otherwise. foreign and skew are those of Config. Nothing is
// sent until the first call.
//
// A user of the file may have a token, a file with one, or a certificate. A user that needs a
// program or a plugin to log in is refused: give New the client of client-go's rest.HTTPClientFor,
// or go through kubectl proxy.
//
// Errors: *backend.InvalidError for a bad URL, such as one with an unknown parameter, and for a
// file that cannot be used.
func Open(ctx context.Context, rawURL string, cfg Config) (*Backend, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	t, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	c, err := t.cluster()
	if err != nil {
		return nil, err
	}
	cfg.Namespace = cmp.Or(t.namespace, cfg.Namespace)
	cfg.Foreign, cfg.Skew = cmp.Or(t.foreign, cfg.Foreign), cmp.Or(t.skew, cfg.Skew)
	return c.open(cfg)
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

// open makes a backend with a client of its own.
func (c *cluster) open(cfg Config) (*Backend, error) {
	if cfg.Namespace == "" {
		cfg.Namespace = c.namespace
	}
	transport, err := c.transport()
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport:     &bearer{next: transport, token: c.token, file: c.tokenFile},
		CheckRedirect: conns.Stay,
	}
	b, err := New(client, c.server, cfg)
	if err != nil {
		return nil, err
	}
	b.owned = transport
	return b, nil
}

// target is the content of a URL.
type target struct {
	namespace, kubeconfig, context string
	foreign, skew                  time.Duration
}

func parseURL(raw string) (target, error) {
	var t target
	if strings.ContainsFunc(raw, unicode.IsControl) {
		return t, storeurl.Error(storeurl.Hidden, "without control characters")
	}
	rest, ok := strings.CutPrefix(raw, "kubernetes://")
	if !ok {
		return t, storeurl.Error(storeurl.Hidden, "kubernetes://namespace")
	}
	if strings.ContainsRune(rest, '#') {
		return t, storeurl.Error("#", "without a fragment")
	}
	rest, query, _ := strings.Cut(rest, "?")
	t.namespace = strings.TrimSuffix(rest, "/")
	if strings.ContainsAny(t.namespace, "/@:") {
		return t, storeurl.Error(storeurl.Hidden, "kubernetes://namespace: the API server is in the kubeconfig")
	}
	params, err := storeurl.Params(query, "kubeconfig", "context", "foreign", "skew")
	if err != nil {
		return t, err
	}
	t.kubeconfig, t.context = params.Get("kubeconfig"), params.Get("context")
	if err := errors.Join(storeurl.Duration(params, "foreign", &t.foreign), storeurl.Duration(params, "skew", &t.skew)); err != nil {
		return t, err
	}
	if params.Has("foreign") && (t.foreign < minForeign || t.foreign > maxForeign) {
		return t, storeurl.ParamError("foreign", params.Get("foreign"), "a duration of "+minForeign.String()+" to "+maxForeign.String())
	}
	if params.Has("skew") && (t.skew < time.Second || t.skew > maxForeign) {
		return t, storeurl.ParamError("skew", params.Get("skew"), "a duration of 1s to "+maxForeign.String())
	}
	return t, nil
}

// cluster finds the API server where kubectl would.
func (t target) cluster() (*cluster, error) {
	path := t.kubeconfig
	if path == "" {
		path, _, _ = strings.Cut(os.Getenv("KUBECONFIG"), string(os.PathListSeparator))
	}
	if path == "" && t.context == "" && os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return inCluster(podFolder, os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	}
	if path == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, badFile("kubeconfig", "nothing", "given: there is no home directory")
		}
		path = home + "/.kube/config"
	}
	return readKubeconfig(path, t.context)
}
