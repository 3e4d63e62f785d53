package holdfast

import (
	"context"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/clock"
)

// State is the state of a lock.
type State uint8

const (
	// Held: the lease is held and its renewals are acknowledged.
	Held State = iota + 1
	// AtRisk: the lease is held, but the last renewal failed. It becomes Held again, or Lost at its
	// deadline.
	AtRisk
	// Lost: the lease has ended. Final.
	Lost
	// Released: the holder released the lock. Final.
	Released
)

// String returns "held", "at risk", "lost" or "released".
func (s State) String() string {
	switch s {
	case Held:
		return "held"
	case AtRisk:
		return "at risk"
	case Lost:
		return "lost"
	case Released:
		return "released"
	default:
		return "unknown"
	}
}

// hold is a lease of this client, shared by the Locks that are handles of it. All fields that
// change are guarded by Client.mu.
type hold struct {
	entry
	c      *Client
	id     Lease
	owner  string
	shared bool
	// The limit and permits of a shared lease, which bound what re-entry may ask for.
	limit, permits int
	unread         bool          // resumed, and its mode and permits are not read from the backend yet
	begun          clock.Instant // when the caller asked for the lock
	sess           *session      // the session of the lease or of its place in the queue; may be nil
	timed          bool          // it has an end of its own
	ttl            time.Duration // the TTL that renewals ask for; 0: it is not renewed individually
	floor          time.Duration // AtLeast
	late           bool          // an attempt to acquire it was cut short, and may still arrive
	life           time.Duration // the longest TTL that was requested; 0: it has no TTL of its own

	token    fence.Token
	since    clock.Instant
	held     bool // granted, and not ended
	err      error
	handles  []*Lock
	deadline clock.Instant // of a timed lease
	until    clock.Instant // AtMost; 0: none
	renewAt  clock.Instant
	renewing bool          // by the renewer
	flights  []*flight     // renewals of this lease alone that are in progress
	doubt    time.Duration // the shortest TTL of a renewal with unknown outcome; 0: none
	failures int
	lastErr  error
}

// ends returns when the lease ends on this side if nothing is renewed.
func (h *hold) ends() clock.Instant {
	d := h.deadline
	if !h.timed {
		d = h.sess.deadline
	}
	if h.until > 0 {
		d = min(d, h.until)
	}
	return d
}

func (h *hold) releaseRequest(abandon bool) backend.ReleaseRequest {
	r := backend.ReleaseRequest{Name: h.id.Name, Lease: h.id.ID, Abandon: abandon}
	if h.sess != nil {
		r.Session = h.sess.id
	}
	return r
}

// keptBy returns the session whose renewals keep the lease, if one does: a timed lease that was
// granted ends by itself.
func (h *hold) keptBy() backend.SessionID {
	if h.timed || h.sess == nil {
		return ""
	}
	return h.sess.id
}

// enter adds h to the held leases. Client.mu is held.
func (c *Client) enter(h *hold) {
	h.held = true
	h.entry.owner = h
	if h.timed {
		c.timed[h] = struct{}{}
		if h.sess != nil { // the place in the queue belonged to the session; the lease does not
			h.sess.forget(h)
		}
	} else {
		h.sess.held++
	}
	c.reschedule(h)
}

// next returns when the renewer has to handle h individually, if at all.
func (h *hold) next() (clock.Instant, bool) {
	if !h.timed {
		return h.until, h.until > 0
	}
	at := h.ends()
	if h.ttl > 0 && !h.renewing {
		at = min(at, h.renewAt)
	}
	return at, true
}

// reschedule makes the renewer handle h at its next instant. Client.mu is held.
func (c *Client) reschedule(h *hold) {
	if at, ok := h.next(); ok && h.held {
		c.schedule(&h.entry, at)
	}
}

// leave removes h from every count and schedule. Client.mu is held.
func (c *Client) leave(h *hold) {
	c.unschedule(&h.entry)
	delete(c.timed, h)
	if h.sess != nil {
		h.sess.forget(h)
		delete(h.sess.watched, h)
		if h.held && !h.timed {
			h.sess.held--
		}
	}
	h.held = false
}

// lose ends h and the contexts of its locks. Client.mu is held.
func (c *Client) lose(h *hold, cause Cause, reason string, err error) {
	if h.err != nil {
		return
	}
	h.err = &LostError{Name: h.id.Name, Token: h.token, Cause: cause, Reason: reason, Err: err}
	if h.held {
		hook(&c.hooks, h.call(), c.hooks.Lost, LostEvent{
			Lock: h.id, Token: h.token, Shared: h.shared, Held: time.Duration(c.clock.Now() - h.since),
			Cause: cause, Reason: reason,
		})
	}
	c.leave(h)
	for _, l := range h.handles {
		l.end(h.err)
	}
}

// call returns the values of the context that the lock was acquired with. Client.mu is held.
func (h *hold) call() context.Context {
	if len(h.handles) == 0 {
		return h.c.background
	}
	return h.handles[0].values
}

// check ends h if its deadline has passed. It does not wait for the renewer, which may be late, and
// which is late after a suspension. Client.mu is held.
func (c *Client) check(h *hold) {
	if h.held {
		c.checkAt(h, c.clock.Now())
	}
}

// checkAt is check at a given reading of the clock. Client.mu is held.
func (c *Client) checkAt(h *hold, now clock.Instant) {
	if !h.timed && now >= h.sess.deadline {
		c.loseSession(h.sess, CauseDeadline, h.sess.lastErr)
	}
	if h.held && now >= h.ends() {
		c.expire(h, now)
	}
}

// expire ends h, whose deadline has passed. Client.mu is held.
func (c *Client) expire(h *hold, now clock.Instant) {
	switch {
	case h.until > 0 && now >= h.until:
		c.lose(h, CauseAtMost, "", nil)
		c.settle(h.releaseRequest(true), h.keptBy(), h.life)
	case h.ttl == 0:
		c.lose(h, CauseEnded, "", nil)
	default:
		c.lose(h, CauseDeadline, "", h.lastErr)
	}
}

// wake does what is due at now. The renewer calls it with Client.mu held.
func (h *hold) wake(c *Client, now clock.Instant, b *batch) {
	if !h.held {
		return
	}
	if now >= h.ends() {
		c.checkAt(h, now) // not at another reading, which can be a moment less
		return
	}
	if h.timed && h.ttl > 0 && !h.renewing && now >= h.renewAt {
		h.renewing = true
		b.timed = append(b.timed, h.takeOff(now, h.ttl))
	}
	c.reschedule(h)
}

// extend records that the backend granted a timed lease another left, counted from sent. That may
// shorten the lease. Client.mu is held.
func (h *hold) extend(sent clock.Instant, left time.Duration) {
	h.deadline = sent + clock.Instant(left-clock.Drift(left))
	h.renewAt = h.c.nextRenewal(sent, left)
	h.failures, h.lastErr = 0, nil
	h.tellRenewed()
}

// tellRenewed signals the channels of Renewed that the deadline has moved. Client.mu is held.
func (h *hold) tellRenewed() {
	for _, l := range h.handles {
		if l.renewed != nil {
			select {
			case l.renewed <- struct{}{}:
			default:
			}
		}
	}
}

// heldKey is the context key under which re-entry finds the lock of a context.
type heldKey struct {
	c    *Client
	name string
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
	if k, ok := key.(heldKey); ok && k.c == x.lock.h.c && k.name == x.lock.h.id.Name {
		return x.lock
	}
	return x.Context.Value(key)
}

// lookingContext ends with its locks. Its Err reads the clock, as that of a lock's context does: an
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
