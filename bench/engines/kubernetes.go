package engines

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/bench"
)

// Kubernetes returns the engine at a URL of k8slock. The API server counts its requests, but a
// client with the permissions for Leases cannot read the counts.
func Kubernetes(ctx context.Context, raw string) (*bench.Engine, error) {
	l, err := openRawKubernetes(raw)
	if err != nil {
		return nil, err
	}
	version, err := l.version(ctx)
	if err != nil {
		l.client.CloseIdleConnections()
		return nil, &backend.UnavailableError{Backend: "kubernetes", Op: "ask for its version", Err: err}
	}
	return &bench.Engine{
		Name: "kubernetes", URL: raw, Version: version, Contenders: []bench.Contender{Ours(), rawKubernetes()},
		Ping: func(ctx context.Context) error {
			_, err := l.version(ctx)
			return err
		},
		Close: func() error { l.client.CloseIdleConnections(); return nil },
	}, nil
}

// rawKubernetes is the minimum of requests for a lock on an API server: a Lease that is created and
// deleted, through the client that k8slock uses. It has no token and no queue, it cannot wait, and
// nothing ends with its owner: it is a limit, not a lock.
func rawKubernetes() bench.Contender {
	return bench.Contender{Name: "raw", Kind: bench.KindRaw, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		return openRawKubernetes(cfg.URL)
	}}
}

func openRawKubernetes(raw string) (*rawKubernetesLocker, error) {
	client, leases, err := k8slock.Client(raw)
	if err != nil {
		return nil, err
	}
	return &rawKubernetesLocker{client: client, leases: leases}, nil
}

type rawKubernetesLocker struct {
	client *http.Client
	leases string
}

// version returns the server's version: the cheapest of its answers that is not read from a file.
func (l *rawKubernetesLocker) version(ctx context.Context) (string, error) {
	server, _, _ := strings.Cut(l.leases, "/apis/")
	text, err := l.ask(ctx, http.MethodGet, server+"/version", "")
	_, after, _ := strings.Cut(text, `"gitVersion": "v`)
	version, _, _ := strings.Cut(after, `"`)
	version, _, _ = strings.Cut(version, "+") // without the build metadata
	return version, err
}

func (l *rawKubernetesLocker) ask(ctx context.Context, method, url, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := l.client.Do(req)
	if err != nil {
		return "", fmt.Errorf("%s: %w", method, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", method, err)
	case res.StatusCode >= http.StatusMultipleChoices:
		return "", fmt.Errorf("%s: %s", method, res.Status) //nolint:err113 // for people
	}
	return string(text), nil
}

// KubernetesName converts the name of a lock of the bench, which consists of letters, digits,
// dashes and slashes, to the name of an object.
func KubernetesName(lock string) string {
	return strings.ToLower(strings.ReplaceAll(lock, "/", "-"))
}

func (l *rawKubernetesLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	object := KubernetesName(name)
	body := fmt.Sprintf(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":%q},"spec":{"holderIdentity":%q,"leaseDurationSeconds":30}}`,
		object, backend.NewLeaseID())
	if _, err := l.ask(ctx, http.MethodPost, l.leases, body); err != nil {
		return bench.Held{}, err
	}
	return bench.Held{Unlock: func(ctx context.Context) error {
		_, err := l.ask(ctx, http.MethodDelete, l.leases+"/"+object, "")
		return err
	}}, nil
}

func (l *rawKubernetesLocker) Close(context.Context) error {
	l.client.CloseIdleConnections()
	return nil
}
