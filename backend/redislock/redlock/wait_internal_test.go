package redlock

import (
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
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
