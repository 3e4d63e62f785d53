package holdfast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/clock"
	"github.com/holdfast-io/holdfast/internal/liveness"
)

// LeaseID names one acquisition; see package backend.
type LeaseID = backend.LeaseID

// NewLeaseID makes a lease ID for WithLease.
func NewLeaseID() LeaseID { return backend.NewLeaseID() }

// Lease identifies a timed lease, so that another process can take it over with [Client.Resume].
// Any client that knows it can release the lock.
type Lease struct {
	Name string
	ID   LeaseID
}

// Lock is a granted lock. Its methods are safe for concurrent use.
type Lock struct {
	h      *hold
	values context.Context //nolint:containedctx // of the call that made it: the source of the values of Context
	// Guarded by Client.mu:
	ctx      *lockContext // made by the first call of Context
	cancel   context.CancelCauseFunc
	renewed  chan struct{}
	released bool
	joined   bool // made by Reentrant; never changes
}

// Name returns the name of the lock.
func (l *Lock) Name() string { return l.h.live.Name }

// String returns the name and the token: lock "order:123" (token 7).
func (l *Lock) String() string { return fmt.Sprintf("lock %q (token %d)", l.Name(), l.Token()) }

// Token returns the fencing token. It is greater than that of every earlier grant of this lock.
// Send it to the resource with every write.
func (l *Lock) Token() fence.Token { return l.h.token }

// Lease returns the name and the lease ID, for Resume and for the HTTP API.
func (l *Lock) Lease() Lease { return l.h.id() }

// Owner returns the owner that the lock was acquired with.
func (l *Lock) Owner() string { return l.h.owner }

// IsShared reports whether the lock was acquired in shared mode. For a resumed lease it is false
// until Reentrant has read the mode from the backend.
func (l *Lock) IsShared() bool {
	l.h.c.mu.Lock()
	defer l.h.c.mu.Unlock()
	return l.h.shared
}

// Context returns a context that ends when the lock is lost or released, and before the lease can
// end on the backend. Its context.Cause is a *LostError or ErrReleased. Its Err reads the clock, so
// it is correct even if this process was stopped and no timer has fired since, and closes Done then.
// Done alone, and contexts derived from it, end with the timer, a moment after the process runs again:
// call Err before you act. It has the values of the context that the lock was acquired with, but not that
// context's end. Acquiring the same lock with it, or with a child of it, is ErrDeadlock, or
// re-entry with the option Reentrant: see Client.Acquire. After the release it means nothing.
func (l *Lock) Context() context.Context {
	c := l.h.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.ctx == nil {
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(l.values))
		l.ctx, l.cancel = &lockContext{Context: ctx, lock: l}, cancel
		if err := l.over(); err != nil {
			cancel(err)
		}
	}
	return l.ctx
}

// end ends the context of the handle. Client.mu is held.
func (l *Lock) end(err error) {
	if l.cancel != nil {
		l.cancel(err)
	}
}

// over returns why the handle has ended, or nil. Client.mu is held.
func (l *Lock) over() error {
	if l.released {
		return ErrReleased
	}
	return l.h.err
}

func (l *Lock) checkNow() {
	c := l.h.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.check(l.h)
}

// Err returns nil while the lock is held, then ErrReleased or a *LostError. It reads the clock and
// sends nothing.
func (l *Lock) Err() error {
	l.checkNow()
	l.h.c.mu.Lock()
	defer l.h.c.mu.Unlock()
	return l.over()
}

// State returns the state of the lock. It reads the clock and sends nothing.
func (l *Lock) State() State {
	err := l.Err()
	l.h.c.mu.Lock()
	defer l.h.c.mu.Unlock()
	switch {
	case errors.Is(err, ErrReleased):
		return StateReleased
	case err != nil:
		return StateLost
	case l.h.live.AtRisk():
		return StateAtRisk
	default:
		return StateHeld
	}
}

// Deadline returns when the lock ends if no further renewal is acknowledged. Every renewal moves
// it. The time has a monotonic reading.
func (l *Lock) Deadline() time.Time {
	c := l.h.c
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clock.Time(l.h.live.Deadline())
}

// Renewed returns a channel that receives a value after the deadline has moved. The channel holds
// one value: a slow reader misses only repetitions. It is never closed, so wait for Context too.
func (l *Lock) Renewed() <-chan struct{} {
	c := l.h.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.renewed == nil {
		l.renewed = make(chan struct{}, 1)
		c.live.Watch(&l.h.live)
	}
	return l.renewed
}

// Extend renews the lease now. A timed lease then ends ttl from now unless it is renewed again,
// which may be sooner than before. Another lease lives with the client's session: Extend renews the
// session, and ttl must not exceed Config.TTL.
//
// Errors: ErrLost; ErrReleased after a release; ErrInvalid, ErrUnavailable, the cause of ctx. After
// the last three the lock is still held, but may end after ttl if that is sooner.
func (l *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	c, h := l.h.c, l.h
	if err := errors.Join(checkContext(ctx), c.caps.ValidateTTL(ttl)); err != nil {
		return c.opErr("extend", h.live.Name, err)
	}
	if !h.live.Timed && ttl > c.cfg.TTL {
		return c.opErr("extend", h.live.Name, invalid("ttl", ttl.String(), "at most the client's, "+c.cfg.TTL.String()+", for a lease of its session"))
	}
	if err := l.Err(); err != nil {
		return c.opErr("extend", h.live.Name, err)
	}
	err := c.agent.Retry(ctx, func(ctx context.Context) error { return c.extendOnce(ctx, h, ttl) })
	if lost := l.Err(); lost != nil {
		err = lost
	}
	return c.opErr("extend", h.live.Name, err)
}

// extendOnce renews the lease with one request.
func (c *Client) extendOnce(ctx context.Context, h *hold, ttl time.Duration) error {
	var req backend.RenewRequest
	var f *liveness.Renewal
	if h.live.Timed {
		req.Leases = []backend.TimedRenewal{{Name: h.live.Name, Lease: h.live.ID, TTL: ttl}}
		c.mu.Lock()
		f = c.live.StartRenewal(&h.live, c.clock.Now(), ttl)
		c.mu.Unlock()
	} else {
		req.Session = h.live.Session.ID
	}
	sent := c.clock.Now()
	res, err := c.agent.Renew(ctx, req)
	now := c.clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.extended(h, f, sent, now, res, err)
}

// extended applies the answer to a request of Extend. Client.mu is held.
func (c *Client) extended(h *hold, f *liveness.Renewal, sent, now clock.Instant, res backend.RenewResult, err error) error {
	if !h.live.Timed {
		if err == nil {
			c.live.SessionConfirmed(h.live.Session, sent, now, res, nil)
		}
		return err
	}
	if err != nil { // also when its context ended because the lock was lost
		c.live.GiveUp(f)
		return err
	}
	answer := res.Leases[0]
	if answer.Err == nil && h.live.TTL > 0 {
		h.live.TTL = f.TTL
	}
	c.live.AnsweredOne(f, sent, now, answer, nil)
	return answer.Err
}

// Detach stops this process from managing a lease that was acquired with NoRenew. The lock's
// context ends with ErrReleased, and the lease lives on until its end. Another process may Resume
// it. For other leases the error is ErrInvalid, because no process would renew them. After a
// release the error is ErrReleased, after a loss ErrLost.
func (l *Lock) Detach() (Lease, error) {
	c, h := l.h.c, l.h
	c.mu.Lock()
	c.check(h)
	err := l.over()
	switch {
	case err != nil:
	case !h.live.Timed || h.live.TTL > 0:
		err = invalid("lease", string(h.live.ID), "one that is not renewed (NoRenew)")
	default:
		c.live.Release(&h.live)
		h.err = ErrReleased
		for _, other := range h.handles {
			other.end(ErrReleased)
		}
	}
	c.mu.Unlock()
	return h.id(), c.opErr("detach", h.live.Name, err)
}

// Locks are several locks that were acquired together.
type Locks []*Lock

// Release releases all of them in reverse order. The errors are joined.
func (ls Locks) Release(ctx context.Context) error {
	errs := make([]error, 0, len(ls))
	for _, l := range slices.Backward(ls) {
		errs = append(errs, l.Release(ctx))
	}
	return errors.Join(errs...)
}

// Context returns a context that ends when the first of the locks is lost or released, with its
// cause. Its Err reads the clock. For acquiring one of the locks with it see Lock.Context.
func (ls Locks) Context() context.Context {
	values := context.Background()
	if len(ls) > 0 {
		values = context.WithoutCancel(ls[0].values)
	}
	ctx, cancel := context.WithCancelCause(values)
	for _, l := range ls {
		endWith(l.Context(), cancel)
	}
	return &lookingContext{Context: ctx, end: cancel, locks: ls}
}

// endWith passes the end of ctx and its cause to cancel. The function that it returns stops that.
func endWith(ctx context.Context, cancel context.CancelCauseFunc) func() bool {
	return context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
}

// State is the state of a lock.
type State uint8

const (
	// StateHeld: the lease is held and its renewals are acknowledged.
	StateHeld State = iota + 1
	// StateAtRisk: the lease is held, but the last renewal failed. It becomes held again, or lost at
	// its deadline.
	StateAtRisk
	// StateLost: the lease has ended. Final.
	StateLost
	// StateReleased: the holder released the lock. Final.
	StateReleased
)

// String returns "held", "at risk", "lost" or "released".
func (s State) String() string {
	switch s {
	case StateHeld:
		return "held"
	case StateAtRisk:
		return "at risk"
	case StateLost:
		return "lost"
	case StateReleased:
		return "released"
	default:
		return "unknown"
	}
}

// hold is a lease of this client, shared by the Locks that are handles of it. All fields that
// change are guarded by Client.mu.
type hold struct {
	live  liveness.Lease
	c     *Client
	owner string
	// The limit and permits of a shared lease, which bound what re-entry may ask for.
	limit, permits int
	shared         bool
	unread         bool          // resumed, and its mode and permits are not read from the backend yet
	begun          clock.Instant // when the caller asked for the lock; 0: there are no hooks that want to know
	floor, most    time.Duration // AtLeast and AtMost; 0: not given

	token   fence.Token
	since   clock.Instant
	err     error      // why it has ended
	broken  *LostError // a grant with that token was broken before its answer came
	first   Lock       // the handle that the acquisition returns
	handles []*Lock
	one     [1]*Lock // where handles begins
}

// id identifies the lease to callers.
func (h *hold) id() Lease { return Lease{Name: h.live.Name, ID: h.live.ID} }

func (h *hold) releaseRequest(abandon bool) backend.ReleaseRequest {
	r := backend.ReleaseRequest{Name: h.live.Name, Lease: h.live.ID, Abandon: abandon}
	if h.live.Session != nil {
		r.Session = h.live.Session.ID
	}
	return r
}

// keptBy returns the session whose renewals keep the lease, if one does: a timed lease that was
// granted ends by itself.
func (h *hold) keptBy() *liveness.Session {
	if h.live.Timed {
		return nil
	}
	return h.live.Session
}

// Lost ends the contexts of the locks. Client.mu is held.
func (h *hold) Lost(cause Cause, reason string, err error) {
	h.err = &LostError{Name: h.live.Name, Token: h.token, Cause: cause, Reason: reason, Err: err}
	if h.live.Held() {
		hook(h.call(), &h.c.hooks, h.c.hooks.Lost, LostEvent{
			Lock: h.id(), Token: h.token, Shared: h.shared, Held: time.Duration(h.c.clock.Now() - h.since),
			Cause: cause, Reason: reason,
		})
	}
	for _, l := range h.handles {
		l.end(h.err)
	}
}

// Moved signals the channels of Renewed that the deadline has moved. Client.mu is held.
func (h *hold) Moved() {
	for _, l := range h.handles {
		if l.renewed != nil {
			select {
			case l.renewed <- struct{}{}:
			default:
			}
		}
	}
}

// Abandon has the lease released on the backend, which may have it. Client.mu is held.
func (h *hold) Abandon() { h.c.agent.Settle(h.releaseRequest(true), h.keptBy(), h.live.Life) }

// call returns the values of the context that the lock was acquired with. Client.mu is held.
func (h *hold) call() context.Context {
	if len(h.handles) == 0 {
		return h.c.agent.Background()
	}
	return h.handles[0].values
}

// check ends h if its deadline has passed. Client.mu is held.
func (c *Client) check(h *hold) {
	if h.live.Held() {
		c.live.Check(&h.live, c.clock.Now())
	}
}

// lockContext is the context of a lock. Its Err reads the clock, so it is correct even if the timer
// that closes Done is late.
type lockContext struct {
	context.Context //nolint:containedctx // this is a context
	lock            *Lock
}

func (x *lockContext) Err() error {
	if err := x.Context.Err(); err != nil {
		return err
	}
	x.lock.checkNow()
	return x.Context.Err()
}

func (x *lockContext) Value(key any) any {
	if asked, ok := key.(*call); ok {
		asked.found(x.lock)
	}
	return x.Context.Value(key)
}

// lookingContext belongs to its locks, and ends with them. Its Err reads the clock, as that of a lock's context does: an
// ordinary child of that context would only know what the last timer reported.
type lookingContext struct {
	context.Context //nolint:containedctx // this is a context
	end             context.CancelCauseFunc
	locks           Locks
}

func (x *lookingContext) Err() error {
	if err := x.Context.Err(); err != nil {
		return err
	}
	for _, l := range x.locks {
		if err := l.Err(); err != nil {
			x.end(err)
			break
		}
	}
	return x.Context.Err()
}

func (x *lookingContext) Value(key any) any {
	if asked, ok := key.(*call); ok {
		for _, l := range x.locks {
			asked.found(l)
		}
	}
	return x.Context.Value(key)
}
