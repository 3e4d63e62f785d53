package backendtest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// waiter is an Acquire in progress.
type waiter struct {
	c      *client
	req    backend.AcquireRequest
	from   time.Time
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the call has returned; the fields below are set then
	grant  backend.Grant
	err    error
	at     time.Time
}

var errGaveUp = errors.New("the waiter gave up")

// start calls Acquire in the background, and does not wait for its place in the queue.
func (c *client) start(r backend.AcquireRequest) *waiter {
	r.Wait = true
	ctx, cancel := context.WithCancelCause(c.e.ctx)
	w := &waiter{c: c, req: r, from: time.Now(), cancel: cancel, done: make(chan struct{})}
	c.tidy(r)
	go func() {
		defer close(w.done)
		w.grant, w.err = c.b.Acquire(ctx, r)
		w.at = time.Now()
	}()
	c.e.Cleanup(func() {
		cancel(nil)
		late := time.NewTimer(c.e.soon())
		defer late.Stop()
		select {
		case <-w.done:
		case <-late.C:
			c.e.Errorf("Acquire of %s did not return after its context ended", describe(r))
		}
	})
	return w
}

// join calls Acquire in the background and waits until the lease is queued, where that can be
// seen.
func (c *client) join(r backend.AcquireRequest) *waiter {
	w := c.start(r)
	if c.e.caps.FIFO {
		w.queueUp()
	}
	return w
}

// queueUp waits until the lease is queued.
func (w *waiter) queueUp() {
	e := w.c.e
	inQueue := func() bool {
		select {
		case <-w.done:
			w.c.excuse(w.req, w.from, w.err)
			e.Fatalf("Acquire of %s returned (%+v, %v); it has to wait in the queue", describe(w.req), w.grant, w.err)
		default:
		}
		return w.inQueue(e.inspect(w.req.Name))
	}
	if !e.poll(e.soon(), inQueue) {
		e.Fatalf("Acquire of %s is not in the queue after %s; Inspect reports %+v", describe(w.req), e.soon(), e.inspect(w.req.Name))
	}
}

func (w *waiter) inQueue(info backend.LockInfo) bool {
	return slices.ContainsFunc(info.Waiters, func(x backend.Waiter) bool { return x.Lease == w.req.Lease })
}

// waits checks that the lease is still queued.
func (w *waiter) waits() {
	e := w.c.e
	if e.caps.FIFO {
		if info := e.inspect(w.req.Name); !w.inQueue(info) {
			e.Fatalf("%s has to wait in the queue; Inspect reports %+v", describe(w.req), info)
		}
	}
	select {
	case <-w.done:
		e.Fatalf("Acquire of %s returned (%+v, %v); it has to wait in the queue", describe(w.req), w.grant, w.err)
	default:
	}
}

// returns waits for the end of the call.
func (w *waiter) returns(within time.Duration) {
	e := w.c.e
	if !w.over(within) {
		e.Fatalf("Acquire of %s still waits after %s; Inspect reports %+v", describe(w.req), within, e.inspect(w.req.Name))
	}
}

// granted waits for the grant, which has to come without any lease expiring.
func (w *waiter) granted() lease { return w.grantedWithin(w.c.e.soon()) }

// grantedWhile waits for the grant for as long as the queue moves: grants counts the grants of
// all its waiters.
func (w *waiter) grantedWhile(grants *atomic.Int64) lease {
	for seen := int64(-1); !w.over(w.c.e.soon()) && grants.Load() != seen; {
		seen = grants.Load()
	}
	l := w.grantedWithin(0)
	grants.Add(1)
	return l
}

// over reports whether the call ends within d.
func (w *waiter) over(d time.Duration) bool {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-w.done:
		return true
	case <-late.C:
	}
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func (w *waiter) grantedWithin(d time.Duration) lease {
	e := w.c.e
	w.returns(d)
	if w.err != nil {
		w.c.excuse(w.req, w.from, w.err)
		e.Fatalf("Acquire of %s: %v; it has to be granted", describe(w.req), w.err)
	}
	l := lease{w.req, w.grant, span{w.from, w.at}}
	e.checkGrant(l)
	return l
}

// firstDone waits until one of the waiters has returned and returns its index: the first one's,
// where there is an order.
func firstDone(e *env, queue []*waiter) int {
	if e.caps.FIFO {
		queue[0].returns(e.soon())
		return 0
	}
	i := -1
	if !e.poll(e.soon(), func() bool {
		i = slices.IndexFunc(queue, func(w *waiter) bool {
			select {
			case <-w.done:
				return true
			default:
				return false
			}
		})
		return i >= 0
	}) {
		e.Fatalf("none of %d waiters was granted the lock within %s", len(queue), e.soon())
	}
	return i
}

// fails waits for the call to fail with want.
func (w *waiter) fails(want error) {
	w.returns(w.c.e.soon())
	if !errors.Is(w.err, want) {
		w.c.e.Fatalf("Acquire of %s returned (%+v, %v); it has to fail with %q", describe(w.req), w.grant, w.err, want)
	}
}

// giveUp ends the context of the call, and checks that it returns with its cause.
func (w *waiter) giveUp() {
	w.cancel(errGaveUp)
	w.fails(errGaveUp)
}

// freed waits for the grant that the expiry of a lease makes possible, and checks that it comes
// in time: ttl after the call that set the end, and not before.
func (w *waiter) freed(set span, ttl time.Duration) lease {
	e := w.c.e
	latest := set.to.Add(ttl + e.caps.ExpiryLag + e.h.Slack)
	l := w.grantedWithin(time.Until(latest) + e.h.Slack)
	if early := set.from.Add(ttl).Sub(w.at); early > 0 {
		e.Fatalf("the lock was free %s before the lease's TTL of %s had elapsed", early, ttl)
	}
	if late := w.at.Sub(latest); late > 0 {
		e.Fatalf("the lock was free %s later than TTL %s + lag %s + slack %s", late, ttl, e.caps.ExpiryLag, e.h.Slack)
	}
	return l
}

// tracker checks from outside that the leases held at any time are compatible. It counts a
// lease from the return of its Acquire to the call of its Release: it is held for at least that
// long.
type tracker struct {
	e *env

	mu        sync.Mutex
	out       []backend.Claim
	tokens    map[uint64]bool
	greatest  uint64 // of all tokens
	exclusive uint64 // of those of exclusive leases
}

func (e *env) track() *tracker { return &tracker{e: e, tokens: make(map[uint64]bool)} }

// got records a grant.
func (t *tracker) got(r backend.AcquireRequest, g backend.Grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, token := r.Claim(), uint64(g.Token)
	if !c.Fits(t.out) {
		t.e.Errorf("%s was granted with token %d while these were held: %+v", describe(r), token, t.out)
	}
	if t.tokens[token] {
		t.e.Errorf("token %d was granted twice", token)
	}
	// Of shared leases that are held together the later may be seen first.
	if least := t.exclusive; c.Mode == backend.Shared && token <= least || c.Mode == backend.Exclusive && token <= t.greatest {
		t.e.Errorf("%s has token %d after token %d (exclusive: %d)", describe(r), token, t.greatest, least)
	}
	t.tokens[token] = true
	t.greatest = max(t.greatest, token)
	if c.Mode == backend.Exclusive {
		t.exclusive = max(t.exclusive, token)
	}
	t.out = append(t.out, c)
}

// gone records that the lease is about to be released.
func (t *tracker) gone(r backend.AcquireRequest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.out, r.Claim()); i >= 0 {
		t.out = slices.Delete(t.out, i, i+1)
	}
}
