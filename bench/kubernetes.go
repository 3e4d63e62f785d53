package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/internal/bench"
)

// kubernetesEngine returns the engine at a URL of k8slock. The API server counts its requests, but a
// client with the permissions for Leases cannot read the counts.
func kubernetesEngine(ctx context.Context, raw string) (*bench.Engine, error) {
	l, err := openRawKubernetes(raw)
	if err != nil {
		return nil, err
	}
	defer l.client.CloseIdleConnections()
	version, err := l.version(ctx)
	if err != nil {
		return nil, &backend.UnavailableError{Backend: "kubernetes", Op: "ask for its version", Err: err}
	}
	return &bench.Engine{Name: "kubernetes", URL: raw, Version: version, Contenders: []bench.Contender{ours(), rawKubernetes(), leaderElection()}}, nil
}

// rawKubernetes is the minimum of requests for a lock on an API server: a Lease that is created and
// deleted, through the client that k8slock uses. It has no token and no queue, it cannot wait, and
// nothing ends with its owner: it is a limit, not a lock.
func rawKubernetes() bench.Contender {
	return bench.Contender{Name: "raw", Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
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

// version returns the server's version.
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

// kubernetesName converts the name of a lock of the bench, which consists of letters, digits,
// dashes and slashes, to the name of an object.
func kubernetesName(lock string) string {
	return strings.ToLower(strings.ReplaceAll(lock, "/", "-"))
}

func (l *rawKubernetesLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	object := kubernetesName(name)
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

// leaderElection is k8s.io/client-go/tools/leaderelection on a Lease, with the times of its own
// examples, and without the default limit of 5 requests a second. A candidate that does not lead
// retries after RetryPeriod. A lock is one election, of which the first term counts.
func leaderElection() bench.Contender {
	return bench.Contender{Name: "client-go", Can: bench.CanWait | bench.CanRenew, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		client, leases, err := k8slock.Client(cfg.URL)
		if err != nil {
			return nil, err
		}
		server, path, _ := strings.Cut(leases, "/apis/")
		_, namespace, _ := strings.Cut(strings.TrimSuffix(path, "/leases"), "/namespaces/")
		set, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: server, QPS: -1}, client)
		if err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
		return &electionLocker{http: client, set: set, namespace: namespace}, nil
	}}
}

type electionLocker struct {
	http      *http.Client
	set       *kubernetes.Clientset
	namespace string
}

// The times of client-go's example.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

var errOver = errors.New("the election ended before it was won")

func (l *electionLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	leads := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "election-" + kubernetesName(name)},
			Client:    l.set.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: string(backend.NewLeaseID())},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(leads) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return bench.Held{}, fmt.Errorf("elector: %w", err)
	}
	// Without this logger, client-go would write every step to the standard error.
	term, resign := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logr.Discard()))
	over := make(chan struct{})
	go func() {
		defer close(over)
		elector.Run(term)
	}()
	unlock := func(context.Context) error {
		resign()
		<-over
		return nil
	}
	select {
	case <-leads:
		return bench.Held{Unlock: unlock}, nil
	case <-over:
		resign()
		return bench.Held{}, errOver
	case <-ctx.Done():
		_ = unlock(ctx) // it gives no error
		return bench.Held{}, context.Cause(ctx)
	}
}

func (l *electionLocker) Close(context.Context) error {
	l.http.CloseIdleConnections()
	return nil
}
