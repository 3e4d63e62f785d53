package main

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/bench/engines"
)

// leaderElection is k8s.io/client-go/tools/leaderelection on a Lease, with the times of its own
// examples, and without the default limit of 5 requests a second. A candidate that does not lead
// retries after RetryPeriod. A lock is one election, of which the first term counts.
func leaderElection() bench.Contender {
	return bench.Contender{Name: "client-go", Kind: bench.KindPeer, Can: bench.CanWait | bench.CanRenew, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
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
			LeaseMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: "election-" + engines.KubernetesName(name)},
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
