package backendtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

type caps = backend.Capabilities

var (
	errTooLong = errors.New("the case took too long")
	errTooBusy = errors.New("a TTL ran out before the next call")
	// errStoodStill is a call that the store left without an answer as if the machine stood still.
	errStoodStill = errors.New("the store stood still")
)

// open opens another backend value, which is closed when the case has ended.
func (e *env) open() backend.Backend {
	b := steady{e.h.Open(opening{e, time.Now()}), e}
	e.mu.Lock()
	e.values = append(e.values, b)
	e.mu.Unlock()
	e.Cleanup(func() {
		if err := b.Close(); err != nil {
			e.Errorf("Close: %v", err)
		}
	})
	return b
}

// opening is the T of a harness that opens a value. On a machine that stands still it may fail.
type opening struct {
	*env

	from time.Time
}

// Fatalf ends the case.
func (o opening) Fatalf(format string, args ...any) {
	o.stood(time.Since(o.from))
	o.env.Fatalf(format, args...)
}

// name returns the name of a lock that no other case uses. The names of one case are alike for a store that
// folds case, accents or forms of a letter, and a collation sorts them unlike their bytes. In some character sets
// the last byte of a kanji and a backslash, which escapes the quotation mark, are one character.
func (e *env) name() string {
	letters := []string{"e", "E", "\u00e9", "e\u0301", "\u00c9", "\uff45"}
	var name strings.Builder
	name.WriteString("suite/" + e.c.ID + "/" + e.text + "\u65e5'")
	for n := e.names.Add(1); n > 0; n /= int64(len(letters)) {
		name.WriteString(letters[n%int64(len(letters))])
	}
	return name.String()
}

// ttl is the TTL of leases that are to expire.
func (e *env) ttl() time.Duration { return e.h.TTL }

// long is a TTL of leases that are not to expire while the case runs.
func (e *env) long() time.Duration {
	const plenty, times = 5 * time.Minute, 20
	return min(max(plenty, times*e.ttl()), e.caps.MaxTTL)
}

// soon bounds events that have to happen without any lease expiring.
func (e *env) soon() time.Duration { return time.Second + e.h.Slack }

// within returns a context for one call, which works in the clean-up too.
func (e *env) within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(e.ctx, d)
}

// later returns a context for the clean-up, which still runs when the case took too long.
func (e *env) later() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(e.ctx), e.soon())
}

// poll calls ok until it returns true, and returns false when that took longer than d.
func (e *env) poll(d time.Duration, ok func() bool) bool {
	const first, most = time.Millisecond, 20 * time.Millisecond
	ctx, cancel := e.within(d)
	defer cancel()
	for pause := first; ; pause = min(2*pause, most) {
		if ok() {
			return true
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return false
		}
	}
}

// until waits until t.
func (e *env) until(t time.Time) {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-e.ctx.Done():
		e.Fatalf("%v", context.Cause(e.ctx))
	}
}

// all runs the functions concurrently, each in a goroutine that Fatalf ends, and waits for
// them. The case ends if one of them failed.
func (e *env) all(fs ...func()) {
	var wg sync.WaitGroup
	for _, f := range fs {
		wg.Go(f)
	}
	wg.Wait()
	e.endIfFailed()
}

// times runs f n times concurrently, like all.
func (e *env) times(n int, f func(i int)) {
	fs := make([]func(), n)
	for i := range fs {
		fs[i] = func() { f(i) }
	}
	e.all(fs...)
}

// client simulates a process: a session on a backend value.
type client struct {
	e      *env
	b      backend.Backend
	sess   backend.SessionID // empty where there are no sessions
	opened span              // the newest call that opened or renewed the session
	ttl    time.Duration     // of the session
	losses chan backend.Loss
	told   func(backend.Loss) // receives the losses in place of the channel; nil: the channel does
}

// span is the time that a call took.
type span struct{ from, to time.Time }

// client returns a process of its own, whose session does not expire.
func (e *env) client() *client { return e.on(e.open(), e.long()) }

// mortal returns a process of its own, whose session expires soon.
func (e *env) mortal() *client { return e.on(e.open(), e.ttl()) }

// on opens a session on b.
func (e *env) on(b backend.Backend, ttl time.Duration) *client { return e.onTelling(b, ttl, nil) }

// onTelling opens a session on b. told, if it is not nil, receives its losses.
func (e *env) onTelling(b backend.Backend, ttl time.Duration, told func(backend.Loss)) *client {
	const plenty = 1024
	c := &client{e: e, b: b, ttl: ttl, losses: make(chan backend.Loss, plenty), told: told}
	if !e.caps.Sessions {
		return c
	}
	c.sess = backend.NewSessionID()
	from := time.Now()
	err := c.open()
	if e.c.Restarts { // a store that has just come back may refuse for a while
		e.poll(e.afterRestart(), func() bool {
			if errors.Is(err, backend.ErrUnavailable) {
				err = c.open()
			}
			return !errors.Is(err, backend.ErrUnavailable)
		})
	}
	if errors.Is(err, backend.ErrSessionLost) && time.Since(from) >= ttl { // opened, without an answer, and confirmed too late
		e.busy(err)
	} else if err != nil {
		e.Fatalf("OpenSession: %v", err)
	}
	e.Cleanup(func() {
		ctx, cancel := e.later()
		defer cancel()
		b := e.anyBackend()
		if e.caps.Bound { // no other value can
			b = c.b
		}
		switch err := b.EndSession(ctx, c.sess); {
		case e.caps.Bound && errors.Is(err, backend.ErrClosed):
		case e.c.Restarts && errors.Is(err, backend.ErrUnavailable): // a store that has just come back may not confirm it
		case err != nil:
			e.Errorf("EndSession: %v", err)
		}
	})
	return c
}

// anyBackend is a value that no case closes.
func (e *env) anyBackend() backend.Backend { return e.b }

// open opens the session, or confirms it.
func (c *client) open() error {
	ctx, cancel := c.e.within(c.e.soon())
	defer cancel()
	from := time.Now()
	err := c.b.OpenSession(ctx, backend.SessionRequest{ID: c.sess, TTL: c.ttl, Lost: c.lost})
	if err == nil {
		c.opened = span{from, time.Now()}
	}
	return err
}

// lost records a loss. It does not block.
func (c *client) lost(l backend.Loss) {
	if c.told != nil {
		c.told(l)
		return
	}
	select {
	case c.losses <- l:
	default:
		c.e.Errorf("Lost was called more often than anything was lost")
	}
}

// brief takes a lease that ends e.ttl() after span: a timed one, or one of a session that is
// not renewed.
func (e *env) brief(name string, opts ...option) (*client, lease, span) {
	if !e.caps.Timed {
		c := e.mortal()
		return c, c.take(c.ask(name, opts...)), c.opened
	}
	c := e.client()
	l := c.take(c.ask(name, append(opts, timed(e.ttl()))...))
	return c, l, l.asked
}

// other returns a process that is not c's and may use its session: c itself where sessions are
// bound.
func (e *env) other(c, other *client) *client {
	if e.caps.Bound {
		return c
	}
	return other
}

// timed makes the request one for a lease with its own end, where the store has such leases.
// Its place in the queue still belongs to the session.
func (e *env) timed(ttl time.Duration) option {
	if !e.caps.Timed {
		return func(*backend.AcquireRequest) {}
	}
	return timed(ttl)
}

// ask makes a request for a new lease. It lives with the session where there are sessions, and
// long enough where there are none.
func (c *client) ask(name string, opts ...option) backend.AcquireRequest {
	r := backend.AcquireRequest{Name: name, Lease: backend.NewLeaseID(), Session: c.sess}
	if c.sess == "" {
		r.Timed, r.TTL = true, c.e.long()
	}
	for _, o := range opts {
		o(&r)
	}
	return r
}

// acquire sends the request once and does not wait in the queue.
func (c *client) acquire(r backend.AcquireRequest) (backend.Grant, error) {
	ctx, cancel := c.e.within(c.e.soon())
	defer cancel()
	c.tidy(r)
	g, err := c.b.Acquire(ctx, r)
	c.e.checkRefusal(r, err)
	return g, err
}

// checkRefusal checks a refusal against the contract: it names a holder that is in the way.
func (e *env) checkRefusal(r backend.AcquireRequest, err error) {
	held, ok := errors.AsType[*backend.HeldError](err)
	if errors.Is(err, backend.ErrHeld) && (!ok || len(held.Holders) == 0 && held.Ahead == 0) {
		e.Errorf("Acquire of %s: %v; a HeldError names a holder, or says how many are before it in the queue", describe(r), err)
	}
}

// tidy ensures that a timed lease is gone when the case has ended.
func (c *client) tidy(r backend.AcquireRequest) {
	if !r.Timed || giveBack(r).Validate() != nil {
		return
	}
	c.e.Cleanup(func() {
		ctx, cancel := c.e.later()
		defer cancel()
		req := giveBack(r)
		req.Abandon = true
		if err := c.e.anyBackend().Release(ctx, req); err != nil {
			c.e.Errorf("Release, Abandon: %v", err)
		}
	})
}

func giveBack(r backend.AcquireRequest) backend.ReleaseRequest {
	return backend.ReleaseRequest{Name: r.Name, Lease: r.Lease, Session: r.Session}
}

// lease is what take acquired.
type lease struct {
	backend.AcquireRequest
	backend.Grant
	asked span
}

// take acquires a lock that has to be free.
func (c *client) take(r backend.AcquireRequest) lease {
	from := time.Now()
	g, err := c.acquire(r)
	l := lease{r, g, span{from, time.Now()}}
	if err != nil {
		c.excuse(r, from, err)
		c.e.Fatalf("Acquire of %s: %v; it has to be granted", describe(r), err)
	}
	c.e.checkGrant(l)
	return l
}

// excuse ends the case without a failure when err occurred because the machine was so busy that
// a short TTL expired on the way.
func (c *client) excuse(r backend.AcquireRequest, from time.Time, err error) {
	switch {
	case errors.Is(err, backend.ErrSessionLost) && c.sess != "" && !c.opened.from.IsZero() && time.Since(c.opened.from) >= c.ttl,
		errors.Is(err, backend.ErrLost) && r.Timed && time.Since(from) >= r.TTL:
		c.e.busy(err)
	}
}

// busy ends the case because the machine is too busy for it.
func (e *env) busy(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unjudged, e.skipped = err, fmt.Sprintf("the machine is too busy: %v", err)
	runtime.Goexit()
}

// checkGrant checks what holds for every grant.
func (e *env) checkGrant(l lease) {
	if !l.Token.Valid() {
		e.Fatalf("Acquire of %s returned token %d; it has to be above 0 and below 2^63", describe(l.AcquireRequest), l.Token)
	}
	if l.Asked.Before(l.asked.from) || l.Asked.After(l.asked.to) {
		e.Fatalf("Grant.Asked is %s after the call began, which took %s; it is a reading of the local clock during the call",
			l.Asked.Sub(l.asked.from), l.asked.to.Sub(l.asked.from))
	}
	switch {
	case l.Timed && (l.Left <= 0 || l.Left > l.TTL):
		e.Fatalf("Grant.Left is %s for a TTL of %s", l.Left, l.TTL)
	case !l.Timed && l.Left != 0:
		e.Fatalf("Grant.Left is %s for a lease that lives with its session; it has to be zero", l.Left)
	}
}

// refused requests a lock that must be refused.
func (c *client) refused(r backend.AcquireRequest) { _ = c.refusal(r) }

// refusal requests a lock that must be refused, and returns the error.
func (c *client) refusal(r backend.AcquireRequest) *backend.HeldError {
	g, err := c.acquire(r)
	var held *backend.HeldError
	switch {
	case err == nil:
		c.e.Fatalf("Acquire of %s was granted with token %d; it has to be refused", describe(r), g.Token)
	case !errors.As(err, &held) || !errors.Is(err, backend.ErrHeld):
		c.e.Fatalf("Acquire of %s: %v; it has to be refused with *HeldError", describe(r), err)
	}
	return held
}

// release releases a lease.
func (c *client) release(r backend.AcquireRequest) error {
	ctx, cancel := c.e.within(c.e.soon())
	defer cancel()
	return c.b.Release(ctx, giveBack(r))
}

// releaseHeld releases a lease that has to be held.
func (c *client) releaseHeld(r backend.AcquireRequest) error {
	err := c.release(r)
	if errors.Is(err, backend.ErrLost) && c.e.mayBeReleased(r.Lease) {
		return nil
	}
	return err
}

// give releases a lease that has to be held, or ends the case.
func (c *client) give(l lease) {
	if err := c.releaseHeld(l.AcquireRequest); err != nil {
		c.e.Fatalf("Release of %s: %v; it was held", describe(l.AcquireRequest), err)
	}
}

// abandon abandons a lease, which always succeeds.
func (c *client) abandon(r backend.AcquireRequest) {
	ctx, cancel := c.e.within(c.e.soon())
	defer cancel()
	req := giveBack(r)
	req.Abandon = true
	if err := c.b.Release(ctx, req); err != nil {
		c.e.Fatalf("Release of %s with Abandon: %v; it has to succeed", describe(r), err)
	}
}

// end ends the session.
func (c *client) end() {
	ctx, cancel := c.e.within(c.e.soon())
	defer cancel()
	if err := c.b.EndSession(ctx, c.sess); err != nil {
		c.e.Fatalf("EndSession: %v", err)
	}
}

// renew sends a renewal, which has to be answered.
func (c *client) renew(req backend.RenewRequest) backend.RenewResult {
	ctx, cancel := c.e.within(c.e.soon())
	defer cancel()
	from := time.Now()
	res, err := c.b.Renew(ctx, req)
	if err == nil && req.Session != "" && req.Session == c.sess && !res.SessionLost {
		c.opened = span{from, time.Now()}
	}
	if err != nil {
		c.e.Fatalf("Renew: %v; the error has to be nil when the backend answered", err)
	}
	if len(res.Leases) != len(req.Leases) {
		c.e.Fatalf("Renew of %d timed leases returned %d results", len(req.Leases), len(res.Leases))
	}
	return res
}

// keep renews the session, which has to be alive.
func (c *client) keep() backend.RenewResult {
	res := c.renew(backend.RenewRequest{Session: c.sess})
	if res.SessionLost {
		c.excuse(backend.AcquireRequest{}, time.Now(), backend.ErrSessionLost)
		c.e.Fatalf("Renew reports that the session is lost, %s after it was renewed; its TTL is %s", time.Since(c.opened.from), c.ttl)
	}
	return res
}

// renewLease renews one timed lease.
func (c *client) renewLease(r backend.AcquireRequest, ttl time.Duration) backend.Renewal {
	req := backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: r.Name, Lease: r.Lease, TTL: ttl}}}
	return c.renew(req).Leases[0]
}

// inspect returns the state of a lock. It retries, because a backend may give up sooner than a
// busy machine is late.
func (e *env) inspect(name string) backend.LockInfo {
	ctx, cancel := e.within(e.soon())
	defer cancel()
	var info backend.LockInfo
	var err error
	e.poll(e.soon(), func() bool {
		info, err = e.anyBackend().Inspect(ctx, name)
		return !errors.Is(err, backend.ErrUnavailable)
	})
	if err != nil {
		e.Fatalf("Inspect of %q: %v", name, err)
	}
	return info
}

// holds checks who holds a lock: these leases, in the order of their grants.
func (e *env) holds(name string, want ...lease) {
	info := e.inspect(name)
	same := slices.EqualFunc(info.Holders, want, func(h backend.Holder, l lease) bool {
		return h.Lease == l.Lease && h.Token == l.Token
	})
	if !same {
		var text []string
		for _, l := range want {
			text = append(text, fmt.Sprintf("%s (token %d)", l.Lease, l.Token))
		}
		e.Fatalf("Inspect reports these holders: %+v; they have to be: %s", info.Holders, strings.Join(text, ", "))
	}
}

// free checks that a lock has no holder and no waiter.
func (e *env) free(name string) {
	if info := e.inspect(name); len(info.Holders)+len(info.Waiters) > 0 {
		e.Fatalf("the lock has no holder and no waiter; Inspect returned %+v", info)
	}
}

// describe describes a request in a failure.
func describe(r backend.AcquireRequest) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s", r.Lease, r.Mode)
	if r.Limit > 0 {
		b.WriteString(", " + strconv.Itoa(max(1, r.Permits)) + " of " + strconv.Itoa(r.Limit))
	}
	if r.Timed {
		b.WriteString(", timed " + r.TTL.String())
	}
	b.WriteString(")")
	return b.String()
}
