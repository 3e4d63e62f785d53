package backendtest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/retry"
)

func crashCases() []Case {
	return []Case{{
		ID: "C2", Name: "killed-under-load",
		Rule:     "acknowledged operations survive a crash: no token is reported to two leases, tokens rise, leases do not overlap, and released leases stay released",
		Restarts: true,
		// A store that forgets its leases grants nothing for as long as they could last, unless
		// they end with their connections.
		Needs: func(c caps) bool { return c.Durable || c.Bound },
		run:   killedUnderLoad,
	}}
}

// crowd is a number of clients that hand few locks over to each other while their store
// crashes.
type crowd struct {
	e    *env
	stop context.Context //nolint:containedctx // it ends the acquisitions of all of them
	news chan struct{}   // capacity 1: there is another grant

	mu     sync.Mutex
	grants int
	locks  map[string]*reported
}

// reported is what clients were told about one lock.
type reported struct {
	last   fence.Token
	holder backend.LeaseID // empty: none
	tokens map[fence.Token]backend.LeaseID
}

// killedUnderLoad kills the store again and again, each time right after a client was told of a
// grant, and mostly of one that another client handed over. By then a store on a slow disk has
// not made much of what clients could read durable.
func killedUnderLoad(e *env) {
	const locks, values, workers, between = 3, 3, 12, 12
	stop, cancel := context.WithCancel(e.ctx)
	defer cancel()
	c := &crowd{e: e, stop: stop, news: make(chan struct{}, 1), locks: make(map[string]*reported)}
	var names []string
	for range locks {
		names = append(names, e.name())
		c.locks[names[len(names)-1]] = &reported{tokens: make(map[fence.Token]backend.LeaseID)}
	}
	var opened []backend.Backend
	for range values {
		opened = append(opened, e.open())
	}
	var members []*client
	for i := range workers {
		members = append(members, e.on(opened[i%values], e.long()))
	}
	fast := func() {}
	if e.h.SlowDisk != nil {
		fast = e.h.SlowDisk(e)
	}
	var all sync.WaitGroup
	for i, m := range members {
		all.Go(func() {
			for n := i; stop.Err() == nil && !e.failed(); n++ {
				c.once(m, names[n%locks])
			}
			c.signal() // await does not wait for more grants once the case has failed
		})
	}
	for range e.h.Kills {
		if !c.await(between) {
			break
		}
		e.restart()
	}
	c.await(between)
	cancel()
	fast()
	all.Wait()
	e.endIfFailed()
	for _, name := range names {
		if !e.poll(e.afterRestart(), func() bool { info := e.inspect(name); return len(info.Holders)+len(info.Waiters) == 0 }) {
			e.free(name)
		}
	}
	e.Logf("%d grants, %d kills, slow disk: %t", c.grants, e.h.Kills, e.h.SlowDisk != nil)
}

// await waits for that many more grants, and returns false when the case has failed.
func (c *crowd) await(more int) bool {
	c.mu.Lock()
	enough := c.grants + more
	c.mu.Unlock()
	limit := time.NewTimer(c.e.afterRestart())
	defer limit.Stop()
	for {
		select {
		case <-c.news:
		case <-limit.C:
			c.e.Errorf("no grants for %s; clients wait for %d locks, and every holder releases its own", c.e.afterRestart(), len(c.locks))
			return false
		case <-c.stop.Done():
			return false
		}
		c.mu.Lock()
		reached := c.grants >= enough
		c.mu.Unlock()
		switch {
		case c.e.failed():
			return false
		case reached:
			return true
		}
	}
}

// once acquires a lock and releases it.
func (c *crowd) once(m *client, name string) {
	c.keep(m)
	c.mu.Lock()
	floor := c.locks[name].last
	c.mu.Unlock()
	req, g, ok := c.acquire(m, name)
	if !ok {
		return
	}
	c.granted(&req, g, floor)
	c.mu.Lock()
	if r := c.locks[name]; r.holder == req.Lease {
		r.holder = ""
	}
	c.mu.Unlock()
	c.release(m, &req)
}

// keep renews the session of a client now and then.
func (c *crowd) keep(m *client) {
	const share = 8
	if m.sess == "" || time.Since(m.opened.from) < m.ttl/share {
		return
	}
	from := time.Now()
	err := c.insist("Renew", func(ctx context.Context) error {
		res, err := m.b.Renew(ctx, backend.RenewRequest{Session: m.sess})
		if res.SessionLost {
			err = backend.ErrSessionLost
		}
		return err
	})
	if err == nil {
		m.opened = span{from, time.Now()}
	}
}

// acquire retries until the lock is granted: under another lease ID where the session was lost.
func (c *crowd) acquire(m *client, name string) (backend.AcquireRequest, backend.Grant, bool) {
	req := m.ask(name)
	req.Wait = true
	for c.stop.Err() == nil {
		g, err := m.b.Acquire(c.stop, req)
		switch {
		case err == nil:
			return req, g, true
		case c.stop.Err() != nil:
		case errors.Is(err, backend.ErrSessionLost) && !c.e.caps.Durable:
			m.sess = backend.NewSessionID()
			if err := m.open(); err != nil && !errors.Is(err, backend.ErrUnavailable) {
				c.e.Errorf("OpenSession after a crash: %v", err)
			}
			req = m.ask(name)
			req.Wait = true
		case !errors.Is(err, backend.ErrUnavailable):
			c.e.Errorf("Acquire of %s while the store crashes: %v", describe(req), err)
			return req, g, false
		}
		retry.Pause(c.stop, 10*time.Millisecond)
	}
	give := giveBack(req)
	give.Abandon = true
	_ = c.insist("Release with Abandon", func(ctx context.Context) error { return m.b.Release(ctx, give) }) // it records a failure itself
	return req, backend.Grant{}, false
}

// granted checks a grant against all that were reported before. floor is the last token of the
// lock that was reported before the request was sent.
func (c *crowd) granted(req *backend.AcquireRequest, g backend.Grant, floor fence.Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.locks[req.Name]
	if other, again := r.tokens[g.Token]; again {
		c.e.Errorf("token %d was reported to the leases %s and %s", g.Token, other, req.Lease)
	}
	if g.Token <= floor {
		c.e.Errorf("token %d was reported to %s, which was requested after token %d was reported", g.Token, req.Lease, floor)
	}
	// Where sessions survive, and none of them expires here, each holder releases what it was
	// granted before it is granted to another.
	if c.e.caps.Durable {
		if r.holder != "" {
			c.e.Errorf("token %d was granted to %s while %s holds token %d", g.Token, req.Lease, r.holder, r.last)
		} else if g.Token <= r.last {
			c.e.Errorf("token %d was reported to %s after token %d", g.Token, req.Lease, r.last)
		}
	}
	r.tokens[g.Token], r.holder, r.last = req.Lease, req.Lease, max(r.last, g.Token)
	c.grants++
	c.signal()
}

// signal has await check again.
func (c *crowd) signal() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// release releases a lease. It may be gone because an earlier attempt released it.
func (c *crowd) release(m *client, req *backend.AcquireRequest) {
	attempts := 0
	err := c.insist("Release", func(ctx context.Context) error {
		attempts++
		return m.b.Release(ctx, giveBack(*req))
	})
	if errors.Is(err, backend.ErrLost) && attempts == 1 && !c.e.mayBeReleased(req.Lease) && c.e.caps.Durable {
		c.e.Errorf("Release of %s: %v; it was granted, and no other client ended it", describe(*req), err)
	}
}

// insist repeats a call while the store is unavailable, and returns its last error, which is
// nil, ErrLost or ErrSessionLost.
func (c *crowd) insist(what string, call func(context.Context) error) error {
	var err error
	answered := c.e.poll(c.e.afterRestart(), func() bool {
		ctx, cancel := c.e.within(c.e.soon())
		defer cancel()
		err = call(ctx)
		return !errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded)
	})
	if !answered || err != nil && !errors.Is(err, backend.ErrLost) && !errors.Is(err, backend.ErrSessionLost) {
		c.e.Errorf("%s while the store crashes: %v", what, err)
	}
	return err
}
