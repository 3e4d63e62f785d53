package holdfast

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/acquire"
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
// see [ListOptions].
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
			page, err := c.List(ctx, ListOptions{Prefix: prefix, After: after})
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
// Errors: as for Inspect. OpError.MayHold means that the break may have been done.
func (c *Client) Break(ctx context.Context, name, reason string) (BreakResult, error) {
	return c.breakLock(ctx, backend.BreakRequest{Name: name, Reason: reason, Actor: c.cfg.Owner})
}

// BreakLease takes the lock from one of its holders, which Inspect names, and from no other. If that lease does
// not hold the lock any more, nothing is broken, and the result is without holders. All else is as for Break.
//
// Errors: as for Inspect; *InvalidError with the field "lease". OpError.MayHold means that the break may
// have been done.
func (c *Client) BreakLease(ctx context.Context, name string, lease LeaseID, reason string) (BreakResult, error) {
	if err := backend.ValidateLeaseID(lease); err != nil {
		return BreakResult{}, c.opErr("break", name, err)
	}
	return c.breakLock(ctx, backend.BreakRequest{Name: name, Lease: lease, Reason: reason, Actor: c.cfg.Owner})
}

func (c *Client) breakLock(ctx context.Context, req backend.BreakRequest) (BreakResult, error) {
	name := req.Name
	if err := errors.Join(checkContext(ctx), req.Validate()); err != nil {
		return BreakResult{}, c.opErr("break", name, err)
	}
	return ask(ctx, c, "break", name, func(ctx context.Context) (BreakResult, error) {
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

// Watch calls deliver with the events of the locks whose names start with prefix, until ctx ends.
// When the stream breaks, Watch starts it again. An EventWatching reports that the stream has
// begun, and that events before it may be missing. deliver must not block for long.
//
// Errors: the cause of ctx, ErrInvalid, ErrUnsupported, ErrClosed.
func (c *Client) Watch(ctx context.Context, prefix string, deliver func(Event)) error {
	err := errors.Join(checkContext(ctx), backend.ValidatePrefix(prefix))
	if deliver == nil {
		err = errors.Join(err, invalid("deliver", "nil", "a function"))
	}
	if err != nil {
		return c.opErr("watch", prefix, err)
	}
	done, err := c.agent.Begin()
	if err != nil {
		return c.opErr("watch", prefix, err)
	}
	defer done()
	ctx, cancel := c.agent.UntilClosed(ctx)
	defer cancel()
	failures := 0
	for {
		begun := time.Now()
		err := c.b.Watch(ctx, backend.WatchRequest{Prefix: prefix}, deliver)
		if time.Since(begun) > 2*acquire.LongestPause {
			failures = 0 // starting is not a success: a stream may break at its start each time
		}
		if !acquire.IsUnavailable(err) || !c.agent.Pause(ctx, acquire.Backoff(failures)) {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return c.opErr("watch", prefix, err)
		}
		failures++
	}
}
