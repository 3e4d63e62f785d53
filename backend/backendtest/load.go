package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
)

func loadCases() []Case {
	const rule = "the load of others, on other locks and on the same backend value, delays no renewal for long: a client that renews on schedule keeps what it holds"
	return []Case{
		{ID: "C4", Name: "a-holder-lives-under-load", Alone: true, Rule: rule, run: holderUnderLoad},
	}
}

const (
	// loadTTL is the least TTL of the holder: short, and fair to a busy machine.
	loadTTL = 15 * time.Second
	// loadFor is how long the load lasts where renewals succeed. It never ends before the
	// renewal in progress has succeeded: a renewal that waits for the end of the load would
	// succeed then.
	loadFor = 2 * time.Second
	// loadBeats is how many renewals there are in loadFor.
	loadBeats = 10
	// loadValues is how many other backend values make load, loadSharers how many leases share
	// the lock that refuses, and loadCrowd how many waiters request one lock together.
	loadValues, loadSharers, loadCrowd = 3, 32, 48
	// loadBurst is how many calls a worker makes before it pauses.
	loadBurst = 8
)

// underLoad is a holder, and the load around it.
type underLoad struct {
	e      *env
	ttl    time.Duration
	holder *client
	held   []lease
	last   time.Time // when the newest renewal that succeeded was sent

	shared, wanted, crowded string          // locks: one that refuses, one that all workers request, one with many waiters
	ctx                     context.Context //nolint:containedctx // of the load
	workers                 sync.WaitGroup
	calls                   atomic.Int64
	stall                   atomic.Int64 // for how long this process did not run, or waited for its disk, in nanoseconds
	over                    atomic.Bool  // the holder releases its leases
}

// holderUnderLoad: the holder's renewals succeed while other clients acquire, are refused,
// release, wait, give up, inspect and list.
func holderUnderLoad(e *env) {
	ctx, stop := context.WithCancel(e.ctx)
	h := &underLoad{e: e, ctx: ctx, ttl: max(e.ttl(), loadTTL), shared: e.name(), wanted: e.name(), crowded: e.name()}
	others := make([]*client, loadValues)
	e.times(loadValues, func(i int) { others[i] = e.client() })
	h.prepare(others[0])
	h.hold()
	defer h.workers.Wait()
	defer stop()
	h.watchMachine()
	for _, c := range slices.Concat(others, []*client{h.holder, h.holder}) {
		h.load(c)
	}
	h.workers.Go(func() { h.repeat(h.crowd) })
	h.renew()
	for _, l := range h.held {
		e.holds(l.Name, l)
	}
	h.over.Store(true)
}

// prepare makes the lock that refuses and the one that many waiters request.
func (h *underLoad) prepare(c *client) {
	e := h.e
	c.take(c.ask(h.crowded))
	share, n := shared, min(loadSharers, e.h.Holders)
	if !e.caps.Shared {
		share = permits(n, 1)
	}
	if !e.caps.Shared && !e.caps.Permits {
		c.take(c.ask(h.shared))
		return
	}
	for range n {
		c.take(c.ask(h.shared, share))
	}
}

// hold acquires what the holder is to keep: a lease of its session and a timed one, as far as
// the store has them.
func (h *underLoad) hold() {
	e := h.e
	h.last = time.Now()
	h.holder = e.onTelling(e.open(), h.ttl, func(l backend.Loss) {
		if !h.over.Load() {
			e.Errorf("the holder was notified of a loss under load, %+v; nothing was taken from it", l)
		}
	})
	if e.caps.Sessions {
		h.held = append(h.held, h.holder.take(h.holder.ask(e.name())))
	}
	if e.caps.Timed {
		h.held = append(h.held, h.holder.take(h.holder.ask(e.name(), timed(h.ttl))))
	}
	if time.Since(h.last) > h.ttl/4 { // without any load
		e.busy(errTooBusy)
	}
}

// renew renews as a client does: each renewal may take a fifth of the TTL, and is retried. Half
// the TTL without success is too long.
func (h *underLoad) renew() {
	e := h.e
	began, tries, slowest, apart := time.Now(), 0, time.Duration(0), time.Duration(0)
	for good := false; !good || time.Since(began) < loadFor; tries++ {
		sent := time.Now()
		err := h.renewOnce()
		took, since := time.Since(sent), time.Since(h.last)
		slowest, apart = max(slowest, took), max(apart, since)
		switch {
		case since > h.ttl/2 && time.Duration(h.stall.Load()) > h.ttl/8:
			e.busy(errTooBusy)
		case since > h.ttl/2: // the machine did not stand still, so the error is no excuse
			e.Fatalf("under load no renewal has succeeded for %s, and %d were sent; the TTL is %s; the newest: %s", since, tries+1, h.ttl, fmt.Sprint(err))
		case err != nil && !errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded):
			e.Fatalf("Renew under load, %s after a renewal that succeeded: %v; the TTL is %s", since, err, h.ttl)
		}
		if good = err == nil; good {
			h.last = sent
			h.stall.Store(0)
		}
		e.until(sent.Add(loadFor / loadBeats))
	}
	e.Logf("%d calls; the slowest of %d renewals took %s, and %s were the longest time without one; the TTL is %s",
		h.calls.Load(), tries, slowest.Round(time.Microsecond), apart.Round(time.Millisecond), h.ttl)
}

// renewOnce renews everything with one call.
func (h *underLoad) renewOnce() error {
	req := backend.RenewRequest{Session: h.holder.sess}
	for _, l := range h.held {
		if l.Timed {
			req.Leases = append(req.Leases, backend.TimedRenewal{Name: l.Name, Lease: l.Lease, TTL: h.ttl})
		}
	}
	const parts = 5
	ctx, cancel := h.e.within(h.ttl / parts)
	defer cancel()
	res, err := h.holder.b.Renew(ctx, req)
	switch {
	case err != nil:
		return err
	case res.SessionLost:
		return backend.ErrSessionLost
	case len(res.Leases) != len(req.Leases):
		h.e.Fatalf("Renew of %d timed leases returned %d results", len(req.Leases), len(res.Leases))
	}
	for _, l := range res.Leases {
		if l.Err != nil {
			return l.Err
		}
	}
	return nil
}

// watchMachine records for how long this process did not run, or waited for a disk. The store may use
// the same one.
func (h *underLoad) watchMachine() {
	const tick = 10 * time.Millisecond
	began := time.Now()
	var syncing atomic.Int64 // since when, after began; 0: not now
	h.workers.Go(func() {
		for last := time.Now(); retry.Pause(h.ctx, tick); last = time.Now() {
			stood := time.Since(last) - tick
			if at := syncing.Load(); at > 0 {
				stood = max(stood, time.Since(began)-time.Duration(at))
			}
			h.stall.Store(max(h.stall.Load(), int64(stood)))
		}
	})
	h.workers.Go(func() {
		f, err := os.CreateTemp("", "backendtest")
		if err != nil {
			return
		}
		for retry.Pause(h.ctx, time.Second) && err == nil {
			syncing.Store(int64(time.Since(began)))
			_, err = f.WriteAt([]byte{0}, 0)
			err = errors.Join(err, f.Sync())
			syncing.Store(0)
		}
		_, _ = f.Close(), os.Remove(f.Name())
	})
}

// load starts one worker for each kind of load.
func (h *underLoad) load(c *client) {
	own := h.e.name()
	for _, call := range []func(context.Context, *client) error{
		func(ctx context.Context, c *client) error { return h.pair(ctx, c, c.ask(own)) },
		func(ctx context.Context, c *client) error { return h.pair(ctx, c, c.ask(h.shared)) },
		func(ctx context.Context, c *client) error {
			r := c.ask(h.wanted)
			r.Wait = true
			return h.pair(ctx, c, r)
		},
		h.look,
	} {
		h.workers.Go(func() {
			h.repeat(func(ctx context.Context) error {
				for range loadBurst {
					if err := call(ctx, c); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// repeat calls f, with short pauses, until the load ends or f fails. A store that is too busy
// for the load is no failure.
func (h *underLoad) repeat(f func(context.Context) error) {
	const parts = 500
	for retry.Pause(h.ctx, rand.N(h.ttl/parts)) {
		err := f(h.ctx)
		switch {
		case err == nil || errors.Is(err, backend.ErrUnavailable):
		case h.ctx.Err() != nil || h.e.failed():
			return
		default:
			h.e.Errorf("a call of the load: %v", err)
			return
		}
	}
}

// pair acquires a lock and releases it. If the request waits, the wait is sometimes a short
// one.
func (h *underLoad) pair(ctx context.Context, c *client, r backend.AcquireRequest) error {
	h.calls.Add(1)
	within := ctx
	if r.Wait && rand.IntN(4) == 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, rand.N(maxPatience))
		defer cancel()
	}
	_, err := c.b.Acquire(within, r)
	h.e.checkRefusal(r, err)
	if errors.Is(err, backend.ErrHeld) {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return h.giveBack(c, r, true)
	}
	return errors.Join(err, h.giveBack(c, r, err != nil))
}

// giveBack releases a lease, or abandons it, also when the load has ended.
func (h *underLoad) giveBack(c *client, r backend.AcquireRequest, abandon bool) error {
	ctx, cancel := h.e.within(h.e.soon())
	defer cancel()
	req := giveBack(r)
	req.Abandon = abandon
	err := c.b.Release(ctx, req)
	if errors.Is(err, backend.ErrLost) && h.e.mayBeReleased(r.Lease) {
		return nil
	}
	return err
}

// look inspects the locks and lists some.
func (h *underLoad) look(ctx context.Context, c *client) error {
	const page = 20
	h.calls.Add(2)
	_, err := c.b.Inspect(ctx, h.shared)
	_, failed := c.b.List(ctx, backend.ListRequest{Prefix: "suite/" + h.e.c.ID, Limit: page})
	return errors.Join(err, failed)
}

// crowd has many waiters request one lock together, through the holder's own backend value, and
// give up.
func (h *underLoad) crowd(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, h.ttl/loadCrowd)
	defer cancel()
	errs := make([]error, loadCrowd)
	var all sync.WaitGroup
	for i := range errs {
		r := h.holder.ask(h.crowded)
		r.Wait = true
		h.calls.Add(1)
		all.Go(func() {
			_, err := h.holder.b.Acquire(within, r)
			if gone := h.giveBack(h.holder, r, true); gone != nil || within.Err() == nil {
				errs[i] = errors.Join(err, gone)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
