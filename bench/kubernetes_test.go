package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// cluster is an API server, and the ways to it.
type cluster struct {
	t      *testing.T
	server *testserver.KubernetesServer
	config *rest.Config
}

func startCluster(t *testing.T) cluster {
	t.Helper()
	s := testserver.Kubernetes(t)
	return cluster{t, s, &rest.Config{
		Host: "https://" + s.Addr(), BearerToken: s.Token(), QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAFile: s.CA()},
	}}
}

// locks is a client of ours, on client-go's own HTTP client.
func (c cluster) locks(addr string, ttl time.Duration, owner string) *holdfast.Client {
	c.t.Helper()
	config := rest.CopyConfig(c.config)
	config.Host = "https://" + addr
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		c.t.Fatal(err)
	}
	b, err := k8slock.New(client, config.Host, k8slock.Config{Foreign: foreign})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = b.Close() })
	locks, err := holdfast.New(b, holdfast.Config{TTL: ttl, Owner: owner})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), 5*time.Second)
		defer cancel()
		_ = locks.Close(ctx)
	})
	return locks
}

// candidate is one of client-go's leader election on the Lease of that name.
type candidate struct {
	*leaderelection.LeaderElector

	leads, ended chan time.Time
	renewals     *renewals
	stop         func() // and wait
}

// These are long enough that a server that stands still for some seconds costs neither side its lease.
const (
	oursTTL  = 12 * time.Second // of our leases
	patience = 10 * time.Second // client-go's LeaseDuration
	foreign  = 18 * time.Second // for how long it believes in ours
)

// renewals is the Lease of a candidate, and when its last renewal that succeeded was sent.
type renewals struct {
	resourcelock.LeaseLock

	last atomic.Pointer[time.Time]
}

func (r *renewals) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	sent := time.Now()
	return r.note(sent, r.LeaseLock.Create(ctx, record))
}

func (r *renewals) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	sent := time.Now()
	return r.note(sent, r.LeaseLock.Update(ctx, record))
}

func (r *renewals) note(sent time.Time, err error) error {
	if err == nil {
		r.last.Store(&sent)
	}
	return err
}

func (c cluster) candidate(name, identity string, polite bool) *candidate {
	c.t.Helper()
	client, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		c.t.Fatal(err)
	}
	x := &candidate{leads: make(chan time.Time, 10), ended: make(chan time.Time, 10), renewals: &renewals{LeaseLock: resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Client: client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}}}
	x.LeaderElector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          x.renewals,
		LeaseDuration: patience, RenewDeadline: patience - patience/5, RetryPeriod: patience / 40, ReleaseOnCancel: polite,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { x.leads <- time.Now() },
			OnStoppedLeading: func() { x.ended <- time.Now() },
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.Run(ctx)
	}()
	x.stop = func() { cancel(); <-done }
	c.t.Cleanup(x.stop)
	return x
}

// within waits for what has to come.
func within[T any](t *testing.T, d time.Duration, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(d):
		t.Fatalf("%s: not within %s", what, d)
		panic("not reached")
	}
}

// never waits for what must not come.
func never[T any](t *testing.T, d time.Duration, what string, c <-chan T) {
	t.Helper()
	select {
	case <-c:
		t.Fatal(what)
	case <-time.After(d):
	}
}

type result struct {
	lock *holdfast.Lock
	err  error
}

// acquire waits for the lock in the background.
func (c cluster) acquire(locks *holdfast.Client, name string) <-chan result {
	got := make(chan result, 1)
	go func() {
		l, err := locks.Acquire(c.t.Context(), name)
		got <- result{l, err}
	}()
	return got
}

// ours and client-go's leader election see each other as the holder of one Lease, and hand
// it to each other.
func TestClientGo(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	c := startCluster(t)
	for name, test := range map[string]func(c cluster, name string){
		"ours-leads": oursLeads, "theirs-leads": theirsLeads, "theirs-is-broken": theirsIsBroken, "theirs-dies": theirsDies, "ours-is-cut-off": oursIsCutOff,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(cluster{t, c.server, c.config}, name)
		})
	}
}

func oursLeads(c cluster, name string) {
	t := c.t
	first, err := c.locks(c.server.Addr(), oursTTL, "ours").Acquire(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	theirs := c.candidate(name, "theirs", true)
	never(t, foreign+2*time.Second, "client-go leads while ours holds the lock", theirs.leads)
	if got, want := theirs.GetLeader(), "ours_"+string(first.Lease().ID); got != want {
		t.Errorf("client-go sees %q lead; it is %q", got, want)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	within(t, time.Minute, "client-go leads after the release", theirs.leads)
}

func theirsLeads(c cluster, name string) {
	t := c.t
	locks := c.locks(c.server.Addr(), oursTTL, "ours")
	first, err := locks.Acquire(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	theirs := c.candidate(name, "theirs", true)
	within(t, time.Minute, "client-go leads", theirs.leads)
	_, err = locks.TryAcquire(t.Context(), name)
	var held *holdfast.HeldError
	if !errors.As(err, &held) || len(held.Holders) != 1 || held.Holders[0].Owner != "theirs" {
		t.Fatalf("TryAcquire while client-go leads: %v", err)
	}
	got := c.acquire(locks, name)
	never(t, patience+2*time.Second, "ours has the lock while client-go leads", got)
	if len(theirs.ended) != 0 || !theirs.IsLeader() {
		t.Error("client-go lost the lead because ours is in the queue")
	}
	theirs.stop()
	next := within(t, time.Minute, "ours after client-go released the Lease", got)
	if next.err != nil || next.lock.Token() <= first.Token() {
		t.Fatalf("%v, token %d after %d", next.err, next.lock.Token(), first.Token())
	}
}

// An operator breaks a leader of client-go's as any holder.
func theirsIsBroken(c cluster, name string) {
	t := c.t
	locks := c.locks(c.server.Addr(), oursTTL, "ours")
	stubborn := c.candidate(name, "stubborn", false)
	within(t, time.Minute, "client-go leads", stubborn.leads)
	got := c.acquire(locks, name)
	awaitWaiter(t, locks, name)
	broken, err := locks.Break(t.Context(), name, "test")
	if err != nil || len(broken.Broken) != 1 || broken.Broken[0].Owner != "stubborn" || broken.Token <= broken.Broken[0].Token {
		t.Fatalf("%+v, %v", broken, err)
	}
	within(t, time.Minute, "client-go ends after the break", stubborn.ended)
	if r := within(t, time.Minute, "ours after the break", got); r.err != nil || r.lock.Token() <= broken.Token {
		t.Fatal(r.err)
	}
}

func awaitWaiter(t *testing.T, locks *holdfast.Client, name string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-tick.C {
		if info, err := locks.Inspect(t.Context(), name); err == nil && len(info.Waiters) == 1 {
			return
		}
	}
	t.Fatal("the queue is empty")
}

// A leader of client-go's that is gone without a word is waited for as long as its lease
// lasts, and no longer than that and a bit.
func theirsDies(c cluster, name string) {
	t := c.t
	locks := c.locks(c.server.Addr(), oursTTL, "ours")
	theirs := c.candidate(name, "theirs", false)
	within(t, time.Minute, "client-go leads", theirs.leads)
	got := c.acquire(locks, name)
	awaitWaiter(t, locks, name)
	theirs.stop()
	within(t, time.Minute, "client-go ends", theirs.ended)
	renewed := *theirs.renewals.last.Load()
	r := within(t, time.Minute, "ours", got)
	if r.err != nil {
		t.Fatal(r.err)
	}
	if d := time.Since(renewed); d < patience {
		t.Errorf("ours had the lock %s after client-go's last renewal; its lease lasts %s", d, patience)
	}
}

// A holder of ours that is cut off knows that it has lost the lock before a candidate of
// client-go's leads, which does after Config.Foreign.
func oursIsCutOff(c cluster, name string) {
	t := c.t
	relay, err := chaos.NewProxy(t.Context(), c.server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = relay.Close() })
	locks := c.locks(relay.Addr(), oursTTL, "ours")
	lock, err := locks.Acquire(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	theirs := c.candidate(name, "theirs", true)
	never(t, patience/2, "client-go leads while ours holds the lock", theirs.leads)
	relay.BlackHole()
	<-lock.Context().Done()
	lost := time.Now()
	if leads := within(t, 2*time.Minute, "client-go leads after ours is cut off", theirs.leads); leads.Before(lost) {
		t.Errorf("client-go led %s before ours knew", lost.Sub(leads))
	}
}
