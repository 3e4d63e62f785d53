package holdfast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/acquire"
	"github.com/holdfast-io/holdfast/internal/clock"
	"github.com/holdfast-io/holdfast/internal/liveness"
)

// Acquire blocks until the lock is granted, ctx is done, or Wait elapses. ctx ends only the
// waiting: it does not end the lock.
//
// A name is 1 to 512 bytes of UTF-8 without control characters. Slashes are allowed, but between them
// no segment is empty, "." or "..": "orders/1" is a name, "/orders/1" and "a//b" are not.
//
// While the backend is unavailable Acquire retries under the same lease ID, so a lost reply never
// means two grants. Without Wait, a backend that has never answered this client is ErrUnavailable after
// Config.Timeout, whatever ctx is. When it fails, a lease that may have been granted, and a place in the queue, is
// released. Acquire waits up to 250 ms for that to be answered; then it continues in the background.
//
// Errors: ErrHeld after Wait; the cause of ctx; ErrInvalid and ErrUnsupported, before anything is
// sent; ErrUnavailable; ErrDeadlock; ErrClosed. With Reentrant also ErrReleased and ErrLost.
//
// After Wait the error has a *HeldError that names the holders, and so it has when the deadline of ctx ended the wait: it
// is then ErrHeld too. Acquire reads the holders when it has left the queue. They are missing if the backend does not answer
// in these 250 ms, or if no other client is in the way by then.
//
// If ctx is the context of a lock of that name which is held, or a child of it, Acquire does not wait: the caller would
// wait for itself. What does not fit beside the held lease is ErrDeadlock, immediately. Beside a shared lease, another
// shared lease or a permit that is free is acquired as usual, as a lease of its own; where it would have to wait, also
// behind a waiting writer, the error is ErrDeadlock and has the *HeldError. With the option Reentrant the call acquires the
// lease that is held.
//
// A caller that holds the lock and does not pass on its context waits for itself. This is not
// ErrDeadlock, because another goroutine may release the lock. But when the wait ends, the error says that
// this client holds the lock.
func (c *Client) Acquire(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	s, err := c.settings(ctx, acquiring, opts)
	if err != nil {
		return nil, c.opErr("acquire", name, err)
	}
	return c.take(ctx, name, &s)
}

// TryAcquire acquires the lock if it is free and does not wait in the queue. While the backend is
// unavailable it retries for Config.Timeout. It takes every option but Wait.
//
// Errors: as for Acquire. ErrHeld comes with a *HeldError that names the holders.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	s, err := c.settings(ctx, trying, opts)
	if err != nil {
		return nil, c.opErr("acquire", name, err)
	}
	s.wait = 0
	return c.take(ctx, name, &s)
}

// Do runs f while it holds the lock. The context passed to f ends with ctx, and when the lock is
// lost. Its Err reads the clock, as that of [Lock.Context] does. The lock is released when f has
// returned and not before, even if ctx has ended by then.
//
// Errors: those of Acquire; what f returned; ErrLost when the lock was lost while f ran, even if f
// returned nil; ErrReleased when f released it. A release without an answer is logged, and continues in
// the background. Several errors are joined; what f returned is left out if it is only the error of the
// context passed to f, which ended with the lock.
func (c *Client) Do(ctx context.Context, name string, f func(context.Context, *Lock) error, opts ...Option) error {
	if f == nil {
		return c.opErr("do", name, invalid("f", "nil", "a function"))
	}
	lock, err := c.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	return c.hold(ctx, Locks{lock}, func(ctx context.Context) error { return f(ctx, lock) })
}

// DoAll runs f while it holds all the locks: see [Client.AcquireAll] and [Client.Do].
//
// Errors: as for Do.
func (c *Client) DoAll(ctx context.Context, names []string, f func(context.Context, Locks) error, opts ...Option) error {
	if f == nil {
		return c.opErr("do", "", invalid("f", "nil", "a function"))
	}
	locks, err := c.AcquireAll(ctx, names, opts...)
	if err != nil {
		return err
	}
	return c.hold(ctx, locks, func(ctx context.Context) error { return f(ctx, locks) })
}

// hold runs f with a context that ends with ctx, and when a lock is lost, and then releases the locks.
func (c *Client) hold(ctx context.Context, locks Locks, f func(context.Context) error) error {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, l := range locks {
		defer endWith(l.Context(), cancel)()
		defer l.releaseQuietly(ctx) // only if f panics; otherwise it is released by then
	}
	err := f(&lookingContext{Context: inner, end: cancel, locks: locks})
	done, cancelRelease := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.Timeout)
	defer cancelRelease()
	var ends []error
	for _, l := range slices.Backward(locks) {
		lost := l.Err()
		if lost == nil {
			ends = append(ends, l.releaseAfter(done))
			continue
		}
		if err == context.Canceled || err == lost { //nolint:errorlint // that error and nothing around it
			err = nil
		}
		ends = append(ends, c.opErr("do", l.Name(), lost))
	}
	return errors.Join(slices.Insert(ends, 0, err)...)
}

// releaseAfter releases the lock after work that is done. That the store does not answer is logged: it says nothing about the
// work, which the caller must not repeat.
func (l *Lock) releaseAfter(ctx context.Context) error {
	err := l.Release(ctx)
	if op, ok := errors.AsType[*OpError](err); !ok || !op.MayHold {
		return err
	}
	l.warnUnreleased(ctx, err)
	return nil
}

func (l *Lock) warnUnreleased(ctx context.Context, err error) {
	l.h.c.cfg.Logger.LogAttrs(ctx, levelWarn, "release failed", attrName(l.h.live.Name), attrError(err))
}

func (l *Lock) releaseQuietly(ctx context.Context) {
	l.h.c.mu.Lock()
	over := l.over()
	l.h.c.mu.Unlock()
	if over != nil {
		return
	}
	done, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.h.c.cfg.Timeout)
	defer cancel()
	if err := l.Release(done); err != nil {
		l.warnUnreleased(done, err)
	}
}

// AcquireAll acquires all the locks or none. It acquires them in the order of their names, so that
// two callers never wait for each other. A name given twice counts once. The options apply to each
// lock, but Wait bounds all of them together. When AcquireAll fails, it releases the locks that it
// acquired. If ctx has ended it waits up to 250 ms for that. AtLeast does not count then.
//
// Errors: as for Acquire.
func (c *Client) AcquireAll(ctx context.Context, names []string, opts ...Option) (Locks, error) {
	s, err := c.settings(ctx, acquiring, opts)
	if err == nil && len(names) == 0 {
		err = invalid("names", "[]", "one or more")
	}
	if err == nil && s.lease != "" {
		err = invalid("lease", string(s.lease), "given for one lock only")
	}
	for _, name := range names {
		err = errors.Join(err, backend.ValidateName(name))
	}
	if err != nil {
		return nil, c.opErr("acquire all", "", err)
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(names)))
	begun := c.clock.Now()
	wait := s.wait
	locks := make(Locks, 0, len(sorted))
	for _, name := range sorted {
		if wait > 0 {
			s.wait = max(1, wait-time.Duration(c.clock.Now()-begun)) // 0 would be no Wait at all
		}
		lock, err := c.take(ctx, name, &s)
		if err == nil {
			locks = append(locks, lock)
			err = locks.lost()
		}
		if err != nil {
			c.undo(ctx, locks, acquire.IsUnavailable(err))
			return nil, err
		}
	}
	return locks, nil
}

// undo releases the locks of an AcquireAll that failed. If ctx has ended it waits for that as long as
// acquire.Withdrawal says. It does so in the background where the backend is unavailable. AtLeast applies
// only if all of them were acquired.
func (c *Client) undo(ctx context.Context, locks Locks, unavailable bool) {
	patience := c.cfg.Timeout
	if ctx.Err() != nil {
		ctx, patience = context.WithoutCancel(ctx), acquire.Withdrawal
	}
	done, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if unavailable {
		cancel()
	}
	for _, l := range slices.Backward(locks) {
		if !l.joined {
			c.mu.Lock()
			l.h.floor = 0
			c.mu.Unlock()
		}
		_ = l.Release(done) // it continues in the background, or is lost
	}
}

// lost returns why the first lost lock was lost, or nil.
func (ls Locks) lost() error {
	for _, l := range ls {
		if err := l.Err(); err != nil {
			return l.h.c.opErr("acquire all", l.Name(), err)
		}
	}
	return nil
}

// Resume takes over a timed lease that another process acquired with NoRenew and handed over. From
// now on it is renewed for TTL, by default the TTL that the lease has. It takes TTL, AtMost and NoRenew.
//
// Errors: ErrLost when it has ended; ErrInvalid, ErrUnavailable, ErrClosed, the cause of ctx.
func (c *Client) Resume(ctx context.Context, lease Lease, opts ...Option) (*Lock, error) {
	s := settings{verb: resuming, owner: c.cfg.Owner}
	err := errors.Join(checkContext(ctx), backend.ValidateName(lease.Name), backend.ValidateLeaseID(lease.ID), s.apply(opts))
	if s.ttl != 0 {
		err = errors.Join(err, c.caps.ValidateTTL(s.ttl))
	}
	if err != nil {
		return nil, c.opErr("resume", lease.Name, err)
	}
	done, err := c.agent.Begin()
	if err != nil {
		return nil, c.opErr("resume", lease.Name, err)
	}
	defer done()
	h := &hold{c: c, owner: s.owner, most: s.atMost, unread: true}
	h.live = liveness.Lease{Holder: h, Name: lease.Name, ID: lease.ID, Timed: true}
	req := backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: lease.Name, Lease: lease.ID, TTL: s.ttl}}}
	var sent clock.Instant
	var got backend.Renewal
	err = c.agent.Retry(ctx, func(ctx context.Context) error {
		sent = c.clock.Now()
		res, err := c.agent.Renew(ctx, req)
		if err == nil {
			got, err = res.Leases[0], res.Leases[0].Err
		}
		return err
	})
	if err != nil {
		return nil, c.opErr("resume", lease.Name, err)
	}
	h.live.Life = s.ttl
	if s.ttl == 0 {
		h.live.Life = got.Left
	}
	if !s.noRenew {
		h.live.TTL = h.live.Life
	}
	c.mu.Lock()
	err = h.Accept(ctx, backend.Grant{Token: got.Token, Left: got.Left}, sent)
	c.mu.Unlock()
	if err != nil {
		return nil, c.opErr("resume", lease.Name, err)
	}
	return &h.first, nil
}

// call is one acquisition that the caller asked for. It makes the holds that it may become. As a key of a
// context, a pointer to it finds the locks of that name that the context belongs to: see outer.
type call struct {
	c           *Client
	begun       clock.Instant // 0: there are no hooks that want to know
	floor, most time.Duration // as in hold
	noRenew     bool
	reentrant   bool
	req         acquire.Request
	outer       []*Lock // of that name, that the context belongs to, the innermost first: see lockContext.Value
}

// found records a lock that the context of the call belongs to, if it is the one that the call is for.
func (x *call) found(l *Lock) {
	if x.c == l.h.c && x.req.Name == l.h.live.Name {
		x.outer = append(x.outer, l)
	}
}

// call returns the acquisition of a lock with these settings.
func (c *Client) call(name string, s *settings) *call {
	x := &call{c: c, floor: s.atLeast, most: s.atMost, noRenew: s.noRenew, reentrant: s.reentrant}
	r := &x.req
	r.Patience, r.Session, r.Fixed, r.Candidates = s.wait, c.sess, s.lease, x
	r.Name, r.Owner, r.Note, r.Wait = name, s.owner, s.note, s.wait != 0
	if s.limit > 1 || s.shared && s.limit != 1 { // a limit of one admits a single holder
		r.Mode = backend.Shared
		r.Permits = 1
		if s.limit > 1 {
			r.Limit, r.Permits = s.limit, max(1, s.permits)
		}
	}
	ttl := s.ttl
	if ttl == 0 {
		ttl = c.cfg.TTL
	}
	if !c.caps.Sessions || s.noRenew || s.atLeast > 0 || ttl != c.cfg.TTL {
		r.Timed, r.TTL = true, max(ttl, s.atLeast)
	}
	return x
}

// take acquires one lock.
func (c *Client) take(ctx context.Context, name string, s *settings) (*Lock, error) {
	x := c.call(name, s)
	x.begun = c.timeForHooks()
	lock, err := c.takeOrJoin(ctx, x)
	if err != nil {
		err = c.opErr("acquire", name, err)
		hook(ctx, &c.hooks, c.hooks.Failed, FailedEvent{
			Name: name, Shared: s.shared, Waited: time.Duration(c.timeForHooks() - x.begun), Result: Result(acquire.Outcome(ctx, err)), Err: err,
		})
		return nil, err
	}
	return lock, nil
}

// takeOrJoin acquires the lock, or returns another handle of it if the call is reentrant.
func (c *Client) takeOrJoin(ctx context.Context, x *call) (*Lock, error) {
	if err := acquire.Validate(x.req.AcquireRequest, c.caps); err != nil {
		return nil, err
	}
	ctx.Value(x) // adds to x.outer
	if x.reentrant {
		return c.reenter(ctx, x)
	}
	inside, err := x.inside()
	if err != nil {
		return nil, err
	}
	if inside {
		x.req.Wait, x.req.Patience = false, 0
	}
	c.hooks.waiting(ctx, 1)
	defer c.hooks.waiting(ctx, -1)
	got, err := c.agent.Acquire(ctx, &x.req)
	switch {
	case err == nil:
		return &got.(*hold).first, nil
	case inside && errors.Is(err, ErrHeld):
		return nil, fmt.Errorf("%w while it holds the lock: %w", ErrDeadlock, err)
	}
	return nil, c.heldHere(ctx, x, err)
}

// inside reports whether the context of the call belongs to a lock of that name that is held. The error is ErrDeadlock
// if the call does not fit beside it.
func (x *call) inside() (bool, error) {
	if len(x.outer) == 0 {
		return false, nil
	}
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	var held []*hold
	permits := x.req.Permits
	for _, l := range x.outer {
		h := l.h
		x.c.check(h)
		if l.over() != nil || slices.Contains(held, h) {
			continue
		}
		held = append(held, h)
		switch {
		case h.unread: // only the backend knows
		case !h.shared || x.req.Mode == backend.Exclusive:
			return true, fmt.Errorf("the caller holds the lock: %w", ErrDeadlock)
		case h.limit == x.req.Limit: // otherwise the backend refuses the limit
			permits += h.permits
		}
	}
	if x.req.Limit > 0 && permits > x.req.Limit && len(held) > 0 {
		return true, fmt.Errorf("%d permits of %d, with those that the caller holds: %w", permits, x.req.Limit, ErrDeadlock)
	}
	return len(held) > 0, nil
}

// heldHere adds to the error of a wait that has ended that this client itself holds the lock. That may be right, between
// two goroutines. Or the caller waited for itself, because it did not pass on the context of its lock.
func (c *Client) heldHere(ctx context.Context, x *call, err error) error {
	if x.req.Patience == 0 || ctx.Err() == nil && !errors.Is(err, ErrHeld) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.live.Held(c.sess.Current(), x.req.Name)[x.req.Name]
	if l == nil {
		return err
	}
	return fmt.Errorf("%w (this client holds it with token %d)", err, l.Holder.(*hold).token)
}

// Candidate implements acquire.Maker.
func (x *call) Candidate() acquire.Candidate {
	h := &hold{
		c: x.c, owner: x.req.Owner, begun: x.begun, shared: x.req.Mode == backend.Shared, limit: x.req.Limit, permits: x.req.Permits,
		most: x.most, floor: x.floor,
	}
	h.live.Holder = h
	if x.req.Timed && !x.noRenew {
		h.live.TTL = x.req.TTL
	}
	return h
}

// reenter returns another handle of the innermost lease that ctx belongs to and that includes what the call asks for.
func (c *Client) reenter(ctx context.Context, x *call) (*Lock, error) {
	err := invalid("reentrant", "true", "given with the context of that lock")
	for _, outer := range x.outer {
		var lock *Lock
		if lock, err = c.enter(ctx, x, outer); err == nil {
			return lock, nil
		}
	}
	return nil, err
}

// enter returns another handle of the lease of outer.
func (c *Client) enter(ctx context.Context, x *call, outer *Lock) (*Lock, error) {
	h := outer.h
	if err := c.read(ctx, h); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.check(h)
	if err := outer.over(); err != nil {
		return nil, err
	}
	if err := h.covers(&x.req.AcquireRequest); err != nil {
		return nil, err
	}
	lock := &Lock{h: h, values: ctx, joined: true}
	h.handles = append(h.handles, lock)
	return lock, nil
}

// covers returns an error if the lease does not include what req asks for. Client.mu is held.
func (h *hold) covers(req *backend.AcquireRequest) error {
	switch {
	case !h.shared:
		return nil // an exclusive lease includes everything
	case req.Mode == backend.Exclusive:
		return fmt.Errorf("exclusive, while the caller holds it shared: %w", ErrDeadlock)
	case req.Limit != h.limit:
		return &LimitError{Name: req.Name, Asked: req.Limit, InForce: h.limit}
	case req.Permits > h.permits:
		return fmt.Errorf("%d permits, while the caller holds %d: %w", req.Permits, h.permits, ErrDeadlock)
	}
	return nil
}

// read fetches the mode and permits of a resumed lease, which only the backend knows.
func (c *Client) read(ctx context.Context, h *hold) error {
	c.mu.Lock()
	c.check(h)
	known := !h.unread || !h.live.Held()
	c.mu.Unlock()
	if known {
		return nil
	}
	done, err := c.agent.Begin()
	if err != nil {
		return err
	}
	defer done()
	var info LockInfo
	err = c.agent.Retry(ctx, func(ctx context.Context) error {
		got, err := c.b.Inspect(ctx, h.live.Name)
		info = got
		return err
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range info.Holders {
		if x.Lease == h.live.ID {
			h.shared, h.permits, h.unread = x.Mode == backend.Shared, max(1, x.Permits), false
			if h.shared {
				h.limit = info.Limit
			}
			return nil
		}
	}
	return &LostError{Name: h.live.Name, Token: h.token, Cause: CauseGone}
}

// Lease implements acquire.Candidate.
func (h *hold) Lease() *liveness.Lease { return &h.live }

// Accept turns a grant of the backend into a lock, unless the lease has already ended (C14). Client.mu is
// held.
func (h *hold) Accept(ctx context.Context, g backend.Grant, sent clock.Instant) error {
	c := h.c
	now := c.clock.Now()
	h.token, h.since = g.Token, now
	inTime := c.live.Granted(&h.live, sent, now, g.Left, h.most)
	switch {
	case h.err != nil:
		return h.err
	case h.broken != nil && h.broken.Token == g.Token:
		return h.broken
	case c.agent.Closed():
		return ErrClosed
	case !inTime:
		return &LostError{Name: h.live.Name, Token: h.token, Cause: CauseExpired}
	}
	h.first.h, h.first.values = h, ctx
	h.handles = append(h.one[:0], &h.first)
	c.live.Hold(&h.live)
	if !h.unread {
		hook(ctx, &c.hooks, c.hooks.Acquired, AcquiredEvent{
			Lock: h.id(), Token: h.token, Shared: h.shared, Waited: time.Duration(now - h.begun), InQueue: g.Waited, ByTimer: g.ByTimer,
		})
	}
	return nil
}
