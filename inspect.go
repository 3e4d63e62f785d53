package holdfast

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/acquire"
	"github.com/holdfast-io/holdfast/internal/liveness"
)

// The types of Inspect, List, Break and Watch; see package backend.
type (
	LockInfo    = backend.LockInfo
	Holder      = backend.Holder
	Waiter      = backend.Waiter
	ListOptions = backend.ListRequest
	ListPage    = backend.ListPage
	BreakResult = backend.BreakResult
	Event       = backend.Event
	EventKind   = backend.EventKind
	Mode        = backend.Mode
)

// The modes of a lease.
const (
	ModeExclusive = backend.Exclusive
	ModeShared    = backend.Shared
)

// The kinds of event that Watch delivers.
const (
	EventWatching = backend.EventWatching // the stream has begun; no lock
	EventAcquired = backend.EventAcquired
	EventReleased = backend.EventReleased
	EventExpired  = backend.EventExpired
	EventBroken   = backend.EventBroken
	EventWaiting  = backend.EventWaiting // a request waits in the queue
	EventLeft     = backend.EventLeft    // a waiter left the queue without a grant
)

// Inspect returns the holders of the lock and its waiters, in order. A free lock yields a LockInfo
// without holders and a nil error.
//
// Errors: ErrInvalid, ErrUnsupported, ErrUnavailable, ErrClosed, the cause of ctx.
func (c *Client) Inspect(ctx context.Context, name string) (LockInfo, error) {
	if err := errors.Join(checkContext(ctx), backend.ValidateName(name)); err != nil {
		return LockInfo{}, c.opErr("inspect", name, err)
	}
	return ask(ctx, c, "inspect", name, func(ctx context.Context) (LockInfo, error) { return c.b.Inspect(ctx, name) })
}

// List returns the locks that are held or waited for, in the order of their names, page by page:
// see [ListOptions]. [Client.All] reads all pages.
//
// Errors: as for Inspect.
func (c *Client) List(ctx context.Context, o ListOptions) (ListPage, error) {
	if err := errors.Join(checkContext(ctx), o.Validate()); err != nil {
		return ListPage{}, c.opErr("list", o.Prefix, err)
	}
	return ask(ctx, c, "list", o.Prefix, func(ctx context.Context) (ListPage, error) { return c.b.List(ctx, o) })
}

// All returns the locks that are held or waited for and whose names start with prefix, in the order of
// their names. It reads them page by page, so they are not of one moment. The last value has the error,
// if there is one.
//
// Errors: as for Inspect.
func (c *Client) All(ctx context.Context, prefix string) iter.Seq2[LockInfo, error] {
	return func(yield func(LockInfo, error) bool) {
		for after := ""; ; {
			page, err := c.List(ctx, ListOptions{Prefix: prefix, After: after, Limit: backend.MaxListLimit})
			for _, info := range page.Locks {
				if !yield(info, nil) {
					return
				}
			}
			if err != nil {
				yield(LockInfo{}, err)
			}
			if after = page.Next; err != nil || after == "" {
				return
			}
		}
	}
}

// Break takes the lock from all its holders. It is meant for operators. It raises the token, ends
// the holders' leases with CauseBroken and the reason, and grants the lock to the first waiters.
// The client's owner is named as the actor. Break is never retried after an ambiguous failure: a
// retry could evict a later holder.
//
// With the option WithLease it takes the lock from that holder alone, which Inspect names. If that lease does not hold the
// lock any more, nothing is broken, and the result is without holders. Break takes no other option.
//
// Errors: as for Inspect; *InvalidError with the field "lease". OpError.MayHold means that the break may have been done.
func (c *Client) Break(ctx context.Context, name, reason string, opts ...Option) (BreakResult, error) {
	s := settings{verb: breaking}
	err := errors.Join(checkContext(ctx), s.apply(opts))
	req := backend.BreakRequest{Name: name, Lease: s.lease, Reason: reason, Actor: c.cfg.Owner}
	if err = errors.Join(err, req.Validate()); err != nil {
		return BreakResult{}, c.opErr("break", name, err)
	}
	res, err := ask(ctx, c, "break", name, func(ctx context.Context) (BreakResult, error) {
		res, err := c.b.Break(ctx, req)
		away, ok := errors.AsType[*UnavailableError](err)
		switch {
		case ok && away.MayHold:
			err = &acquire.LastError{Err: err}
		case !ok && err != nil && ctx.Err() != nil:
			err = &acquire.LastError{Err: &UnavailableError{Backend: c.caps.Name, Op: "break", MayHold: true, Err: err}}
		}
		return res, err
	})
	c.endBroken(name, res.Broken, reason)
	return res, err
}

// endBroken ends the locks of this client that it broke itself: many backends would report it only with the next renewal.
// A later grant of the same lease ID has another token. The answer to an acquire that was granted may still be on its way.
func (c *Client) endBroken(name string, broken []Holder, reason string) {
	tokens := make(map[LeaseID]fence.Token, len(broken))
	for _, b := range broken {
		tokens[b.Lease] = b.Token
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live.Each(c.sess.Current(), func(l *liveness.Lease) {
		if token, ok := tokens[l.ID]; ok && l.Name == name && token == l.Holder.(*hold).token {
			c.live.Lose(l, CauseBroken, reason, nil)
		}
	})
	c.agent.InProgress(func(x acquire.Candidate) {
		if token, ok := tokens[x.Lease().ID]; ok && x.Lease().Name == name {
			x.(*hold).broken = &LostError{Name: name, Token: token, Cause: CauseBroken, Reason: reason}
		}
	})
}

// ask calls f until it gets an answer, as retry does.
func ask[T any](ctx context.Context, c *Client, op, name string, f func(context.Context) (T, error)) (T, error) {
	var answer T
	done, err := c.agent.Begin()
	if err == nil {
		defer done()
		err = c.agent.Retry(ctx, func(ctx context.Context) error {
			got, err := f(ctx)
			answer = got
			return err
		})
	}
	return answer, c.opErr(op, name, err)
}

// Watch returns the events of the locks whose names start with prefix, until ctx ends or the loop is left. When the
// stream breaks, Watch starts it again. An EventWatching reports that the stream has begun, and that events before it may
// be missing. The body of the loop must not block for long. The last value has the error, and no event.
//
// Errors: the cause of ctx, ErrInvalid, ErrUnsupported, ErrClosed.
func (c *Client) Watch(ctx context.Context, prefix string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		left := false
		err := c.watch(ctx, prefix, func(e Event) bool {
			left = left || !yield(e, nil)
			return !left
		})
		if !left {
			yield(Event{}, c.opErr("watch", prefix, err))
		}
	}
}

// watch calls deliver with the events until that returns false.
func (c *Client) watch(ctx context.Context, prefix string, deliver func(Event) bool) error {
	if err := errors.Join(checkContext(ctx), backend.ValidatePrefix(prefix)); err != nil {
		return err
	}
	done, err := c.agent.Begin()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := c.agent.UntilClosed(ctx)
	defer cancel()
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	failures := 0
	for {
		begun := time.Now()
		err := c.b.Watch(ctx, backend.WatchRequest{Prefix: prefix}, func(e Event) {
			if !deliver(e) {
				leave()
			}
		})
		if time.Since(begun) > 2*acquire.LongestPause {
			failures = 0 // starting is not a success: a stream may break at its start each time
		}
		if !acquire.IsUnavailable(err) || !c.agent.Pause(ctx, acquire.Backoff(failures)) {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return err
		}
		failures++
	}
}
