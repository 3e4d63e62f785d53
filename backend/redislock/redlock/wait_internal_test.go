package redlock

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// A lease that is requested twice is granted to both calls, although another one was requested in between; a third call,
// which comes when it is held, does not wait for the other lease either, which waits for it.
func TestWaitsTwice(t *testing.T) {
	t.Parallel()
	p := three(t)
	release := func(req backend.AcquireRequest) {
		if err := p.Release(t.Context(), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease}); err != nil {
			t.Error(err)
		}
	}
	request := func() backend.AcquireRequest { return wanted("n", func(r *backend.AcquireRequest) { r.Wait = true }) }
	holder, twin, other := request(), request(), request()
	p.take(t, holder)
	waiting := 0
	begin := func(req backend.AcquireRequest) <-chan fence.Token {
		granted := make(chan fence.Token, 1)
		go func() {
			g, err := p.Acquire(t.Context(), req)
			if err != nil {
				t.Error(err)
			}
			granted <- g.Token
		}()
		waiting++
		leasetest.Eventually(t, "the call waits", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.queues["n"] != nil && len(p.queues["n"].waiters) == waiting
		})
		return granted
	}
	first, between, second := begin(twin), begin(other), begin(twin)
	release(holder)
	token := <-first
	if again := <-second; again != token {
		t.Errorf("one lease has the tokens %d and %d", token, again)
	}
	if g := p.take(t, twin); g.Token != token {
		t.Errorf("a third call: token %d; want %d", g.Token, token)
	}
	release(twin)
	if later := <-between; later <= token {
		t.Errorf("token %d after %d", later, token)
	}
}

// A lock that is waited for again, before the nodes learned that it was not, is listened to.
func TestSubscriptionOutlivesItsQueue(t *testing.T) {
	t.Parallel()
	p := three(t)
	for range 100 {
		l, w := p.enter("n", "lease")
		p.subscribe(l)
		leasetest.Eventually(t, "a majority publishes", func() bool { return p.listening(l) })
		p.leave(l, w)
		p.due(l)
	}
}

// late is a node whose votes are given, but not reported before it may speak.
type late struct {
	link
	given    chan<- struct{}
	maySpeak <-chan struct{}
}

func (l *late) run(ctx context.Context, load bool, key string, a []string) ([]program.Reply, error) {
	r, err := l.link.run(ctx, load, key, a)
	if slices.Contains(a, opAcquire) {
		l.given <- struct{}{}
		<-l.maySpeak
	}
	return r, err
}

// A call that was given up had the votes of all nodes for a while. A waiter that has seen it as the holder learns that it is not.
func TestVotesOfACallThatWasGivenUp(t *testing.T) {
	t.Parallel()
	servers := testserver.RedisNodes(t, 3, "--appendonly", "no")
	p, other := newPanel(t, servers), newPanel(t, servers)
	given, maySpeak := make(chan struct{}, len(servers)), make(chan struct{})
	for _, n := range p.nodes {
		n.link = &late{n.link, given, maySpeak}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = p.Acquire(ctx, backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: 5 * time.Minute})
	}()
	for range servers {
		<-given
	}
	cancel()
	<-ended
	granted := make(chan error, 1)
	go func() {
		_, err := other.Acquire(t.Context(), backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute, Wait: true})
		granted <- err
	}()
	leasetest.Eventually(t, "the other one listens to all nodes", func() bool {
		other.mu.Lock()
		defer other.mu.Unlock()
		return !slices.ContainsFunc(other.nodes, func(n *node) bool { return !n.channels["n"] })
	})
	time.Sleep(100 * time.Millisecond) // until it waits: each subscription makes it ask again
	close(maySpeak)
	select {
	case err := <-granted:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(15 * time.Second):
		t.Error("the lock is free, and its waiter waits for the end of a lease that never was")
	}
}

// A lease whose votes were released has the lock later: that release is heard, too.
func TestReleaseIsHeardAgain(t *testing.T) {
	t.Parallel()
	b, err := newBackend(make([]link, 3), Config{})
	if err != nil {
		t.Fatal(err)
	}
	l, w := b.enter("n", "lease")
	for n := range 3 {
		for i := range b.nodes {
			b.heard(i, "n", "other")
		}
		select {
		case <-w.wake:
		default:
			t.Errorf("release %d is not heard", n+1)
		}
	}
	b.leave(l, w)
}
