package backendtest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

const (
	manyHolders = 5000
	fewHolders  = 200
	// sharerClients is how many processes the holders belong to, and sharerWorkers how many
	// requests each of them has in progress: enough for stores that batch concurrent requests.
	sharerClients = 8
	sharerWorkers = 4
	// sharerQueue is how many shared waiters are queued at the start of the break, and
	// sharerLeavers how many holders leave during the break. It is fewer than sharerQueue, so
	// that a break of waiters that the break let in itself is more than the leavers can
	// explain.
	sharerQueue   = 40
	sharerLeavers = 12
	// longEvery: one lease in longEvery has the longest owner and note.
	longEvery = 16
)

// sharers is a lock with many shared holders, in several processes.
type sharers struct {
	e       *env
	name    string
	limit   int // of the lock; 0: none
	clients []*client
	holders []lease
	asked   atomic.Int64 // how many requests were made

	mu       sync.Mutex
	released map[backend.LeaseID]bool         // those for which Release was called, or whose Acquire returned ErrLost
	told     map[backend.LeaseID]backend.Loss // what the sessions were told, by push or by renewal
}

// gather makes a lock with n shared holders, and with no room for more of them where the store
// has limits.
func (e *env) gather(n int, limited bool) *sharers {
	c := &sharers{e: e, released: make(map[backend.LeaseID]bool), told: make(map[backend.LeaseID]backend.Loss)}
	c.name = e.name() + "/" + strings.Repeat("n", backend.MaxNameLen)
	c.name = c.name[:backend.MaxNameLen]
	if limited && e.caps.Permits {
		c.limit = n
	}
	for range sharerClients {
		c.clients = append(c.clients, e.onTelling(e.open(), e.long(), c.note))
	}
	if !e.caps.Sessions { // otherwise the end of the sessions releases everything
		e.Cleanup(func() {
			ctx, cancel := e.later()
			defer cancel()
			if _, err := e.anyBackend().Break(ctx, backend.BreakRequest{Name: c.name}); err != nil {
				e.Errorf("Break: %v", err)
			}
		})
	}
	c.keepAll()
	c.holders = make([]lease, n)
	var next atomic.Int64
	began := time.Now()
	e.times(sharerClients*sharerWorkers, func(i int) {
		k := c.clients[i%sharerClients]
		for j := next.Add(1) - 1; j < int64(n); j = next.Add(1) - 1 {
			r := c.ask(k)
			r.Wait = true // if many try at the same time, some stores refuse some of them
			g, err := c.insist(k, r)
			if err != nil {
				e.Fatalf("Acquire of %s, holder %d of %d: %v; it has to be granted", describe(r), j, n, err)
			}
			c.holders[j] = lease{AcquireRequest: r, Grant: g}
		}
	})
	e.Logf("%d holders were made in %s", n, time.Since(began).Round(time.Millisecond))
	return c
}

// insist acquires a lease, and retries when a busy store did not answer in time.
func (c *sharers) insist(k *client, r backend.AcquireRequest) (backend.Grant, error) {
	var g backend.Grant
	var err error
	c.e.poll(c.e.soon(), func() bool {
		ctx, cancel := c.e.within(c.e.soon())
		defer cancel()
		g, err = k.b.Acquire(ctx, r)
		return !errors.Is(err, backend.ErrUnavailable)
	})
	return g, err
}

// ask makes a request for a share of the lock.
func (c *sharers) ask(k *client) backend.AcquireRequest {
	share := shared
	if c.limit > 0 {
		share = permits(c.limit, 1)
	}
	r := k.ask(c.name, share)
	if c.asked.Add(1)%longEvery == 1 {
		r.Owner, r.Note = strings.Repeat("o", backend.MaxOwnerLen), strings.Repeat("t", backend.MaxNoteLen)
	}
	return r
}

// keepAll renews the sessions until the case has ended: making the holders may take longer than
// the longest TTL.
func (c *sharers) keepAll() {
	if !c.e.caps.Sessions {
		return
	}
	ctx, cancel := context.WithCancel(c.e.ctx)
	var renewers sync.WaitGroup
	for _, k := range c.clients {
		renewers.Go(func() {
			tick := time.NewTicker(k.ttl / 8)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					c.renew(ctx, k)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	c.e.Cleanup(func() { cancel(); renewers.Wait() })
}

// renew renews a session and records the losses that are reported.
func (c *sharers) renew(ctx context.Context, k *client) {
	res, err := k.b.Renew(ctx, backend.RenewRequest{Session: k.sess})
	switch {
	case ctx.Err() != nil || errors.Is(err, backend.ErrUnavailable): // the next renewal will do
	case err != nil:
		c.e.Errorf("Renew: %v", err)
	case res.SessionLost:
		c.e.Errorf("Renew reports that the session is lost")
	}
	for _, l := range res.Lost {
		c.note(l)
	}
}

// lostFor reports whether the session of a holder was told of its loss, for this reason.
func (c *sharers) lostFor(l lease, reason string) bool {
	return c.e.poll(c.e.soon(), func() bool {
		c.renew(c.e.ctx, c.clientOf(l))
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.told[l.Lease].Reason == reason
	})
}

// anyTold reports whether a loss was reported.
func (c *sharers) anyTold() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.told) > 0
}

func (c *sharers) note(l backend.Loss) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told[l.Lease] = l
}

// unheard returns the victims whose loss was not reported yet. A client that had no answer to its
// Acquire may not know that the lease was ever its own.
func (c *sharers) unheard(victims map[backend.LeaseID]backend.Holder) []backend.LeaseID {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, l := range c.told {
		if _, ok := victims[id]; !ok {
			c.e.Errorf("lease %s was reported as lost, %+v; no break took it", id, l)
			delete(c.told, id)
		}
	}
	var missing []backend.LeaseID
	for id := range victims {
		_, told := c.told[id]
		if _, unknown := c.e.unanswered.Load(id); !told && !unknown && !c.released[id] {
			missing = append(missing, id)
		}
	}
	return missing
}

// checkTold checks that every victim is reported to its session, and no other lease is. The
// caller that releases a lease at the same moment is told by that call.
func (c *sharers) checkTold(victims map[backend.LeaseID]backend.Holder) {
	if !c.e.caps.Sessions {
		return
	}
	all := func() bool { return len(c.unheard(victims)) == 0 }
	if c.e.caps.LossPush && c.e.poll(c.e.soon(), all) {
		return
	}
	for _, k := range c.clients {
		c.renew(c.e.ctx, k)
	}
	if !all() {
		c.e.Errorf("%d leases were broken; the loss of %d of them was not reported", len(victims), len(c.unheard(victims)))
	}
}

// queue adds shared waiters, then an exclusive one, then another shared one, and returns them
// in that order. Where the store has no limits, only the exclusive one waits, and those behind
// it.
func (c *sharers) queue(n int) ([]*waiter, *waiter, *waiter) {
	e := c.e
	var sharing []*waiter
	if c.limit > 0 {
		for i := range n {
			sharing = append(sharing, c.clients[i%sharerClients].start(c.ask(c.clients[i%sharerClients])))
		}
		c.lined(sharing...)
	}
	k := e.onTelling(e.open(), e.long(), c.note)
	c.clients = append(c.clients, k)
	exclusive := k.start(k.ask(c.name))
	c.lined(exclusive)
	last := k.start(c.ask(k))
	c.lined(last)
	return sharing, exclusive, last
}

// lined waits until the waiters are queued, where that can be seen.
func (c *sharers) lined(ws ...*waiter) {
	if !c.e.caps.FIFO || len(ws) == 0 {
		return
	}
	if !c.e.poll(c.e.soon(), func() bool {
		in := make(map[backend.LeaseID]bool)
		for _, x := range c.e.inspect(c.name).Waiters {
			in[x.Lease] = true
		}
		return !slices.ContainsFunc(ws, func(w *waiter) bool { return !in[w.req.Lease] })
	}) {
		c.e.Fatalf("%d waiters are not in the queue after %s", len(ws), c.e.soon())
	}
}

// isDone reports whether the call has returned.
func (w *waiter) isDone() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// awaitPart waits until a break has taken the lock from a holder, or has ended.
func (c *sharers) awaitPart(sharing []*waiter, over <-chan struct{}) {
	c.e.poll(c.e.soon(), func() bool {
		select {
		case <-over:
			return true
		default:
			return c.anyTold() || slices.ContainsFunc(sharing, (*waiter).isDone)
		}
	})
}

// leave has holders release the lock: one of them immediately, and the others when a part of
// the break is done, or all of it. It returns those whose release succeeded.
func (c *sharers) leave(leavers []lease, sharing []*waiter, over <-chan struct{}) map[backend.LeaseID]bool {
	left := make(map[backend.LeaseID]bool)
	for i, l := range leavers {
		if i > 0 {
			c.awaitPart(sharing, over)
		}
		c.mu.Lock()
		c.released[l.Lease] = true
		c.mu.Unlock()
		err := c.clientOf(l).release(l.AcquireRequest)
		switch {
		case err == nil:
			left[l.Lease] = true
		case !errors.Is(err, backend.ErrLost):
			c.e.Errorf("Release of %s beside a break: %v; it has to be nil or ErrLost", l.Lease, err)
		}
	}
	return left
}

func (c *sharers) clientOf(l lease) *client {
	return c.clients[slices.IndexFunc(c.clients, func(k *client) bool { return k.sess == l.Session })]
}

// victimsOf checks that the results name each lease once, each with the token of its grant, and
// that each token of a result is above those of its victims. Where no single store decides, two
// breaks may each have taken votes of a lease, and both name it.
func (c *sharers) victimsOf(known map[backend.LeaseID]fence.Token, results ...backend.BreakResult) map[backend.LeaseID]backend.Holder {
	victims := make(map[backend.LeaseID]backend.Holder)
	votes := c.e.caps.TokenKind == "votes"
	for _, res := range results {
		named := make(map[backend.LeaseID]bool)
		for _, h := range res.Broken {
			if _, twice := victims[h.Lease]; twice && !votes || named[h.Lease] {
				c.e.Fatalf("lease %s is named twice as broken", h.Lease)
			}
			named[h.Lease] = true
			if t, ok := known[h.Lease]; ok && t != 0 && t != h.Token {
				c.e.Fatalf("the broken lease %s has token %d in the result; it was granted with %d", h.Lease, h.Token, t)
			}
			if h.Token >= res.Token {
				c.e.Fatalf("Break returned token %d; a victim had %d", res.Token, h.Token)
			}
			victims[h.Lease] = h
		}
	}
	return victims
}

func tokensOf(ls []lease) map[backend.LeaseID]fence.Token {
	known := make(map[backend.LeaseID]fence.Token, len(ls))
	for _, l := range ls {
		known[l.Lease] = l.Token
	}
	return known
}

// checkHolders checks that each of the leases held when the break began was either released or
// broken.
func (c *sharers) checkHolders(victims map[backend.LeaseID]backend.Holder, left map[backend.LeaseID]bool) {
	missing, both := 0, 0
	for _, l := range c.holders {
		_, broken := victims[l.Lease]
		if !broken && !left[l.Lease] && !c.e.mayBeReleased(l.Lease) {
			missing++
		}
		if broken && left[l.Lease] {
			both++
		}
	}
	if missing > 0 {
		c.e.Errorf("%d of %d holders neither left nor are named as broken", missing, len(c.holders))
	}
	if both > 0 && !c.e.caps.Tied { // there a break asks the holder to release the lock, which may do so by itself
		c.e.Errorf("%d holders whose release was a success are named as broken", both)
	}
}

// checkOut checks who holds the lock, in any order.
func (c *sharers) checkOut(want map[backend.LeaseID]fence.Token) {
	info := c.e.inspect(c.name)
	got := make(map[backend.LeaseID]fence.Token, len(info.Holders))
	for _, h := range info.Holders {
		got[h.Lease] = h.Token
	}
	if !maps.Equal(got, want) {
		c.e.Fatalf("Inspect reports these holders and tokens: %v; they have to be %v", got, want)
	}
}

// after checks that every survivor has a greater token than every victim.
func (c *sharers) after(victims map[backend.LeaseID]backend.Holder, survivors map[backend.LeaseID]fence.Token) {
	var most fence.Token
	for _, h := range victims {
		most = max(most, h.Token)
	}
	for id, t := range survivors {
		if t <= most {
			c.e.Errorf("lease %s has token %d after a break whose victims had up to %d", id, t, most)
		}
	}
}
