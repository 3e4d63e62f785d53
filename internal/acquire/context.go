package acquire

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// requestContext is the context of one request. Most requests are answered before any code waits for
// the end of their context, so the channel and the timer that such a wait needs are made on demand.
type requestContext struct {
	context.Context           //nolint:containedctx // the parent
	deadline        time.Time // zero: that of the parent alone
	long            time.Duration
	cause           error // of the end at the deadline; nil: backend.NoAnswer(long)
	made            atomic.Pointer[madeContext]
	over            atomic.Bool // see finish
}

// madeContext is what package context makes of a requestContext.
type madeContext struct {
	context.Context //nolint:containedctx // this is a context
	cancel          context.CancelCauseFunc
}

// within returns a context that ends with ctx, or with cause when d has elapsed; a nil cause is backend.NoAnswer. Its caller finishes it.
func within(ctx context.Context, d time.Duration, cause error) *requestContext {
	return &requestContext{Context: ctx, deadline: time.Now().Add(d), long: d, cause: cause}
}

// finish ends the context when its request has been answered, and releases what was made for it.
func (x *requestContext) finish() {
	x.over.Store(true)
	if made := x.made.Load(); made != nil {
		made.cancel(nil)
	}
}

// end ends the context with a cause. It is for a context without a deadline of its own.
func (x *requestContext) end(cause error) { x.make().cancel(cause) }

// make makes the context, unless that has been done.
func (x *requestContext) make() *madeContext {
	if made := x.made.Load(); made != nil {
		return made
	}
	parent := x.Context
	if x.over.Load() {
		parent = context.WithoutCancel(parent) // finish came before whatever has ended that
	}
	made := new(madeContext)
	if x.deadline.IsZero() {
		made.Context, made.cancel = context.WithCancelCause(parent)
	} else {
		cause := x.cause
		if cause == nil {
			cause = backend.NoAnswer(x.long)
		}
		ctx, stop := context.WithDeadlineCause(parent, x.deadline, cause)
		made.Context, made.cancel = ctx, func(error) { stop() }
	}
	if !x.made.CompareAndSwap(nil, made) {
		made.cancel(nil)
	}
	if x.over.Load() { // finish may have come before there was anything to end
		x.made.Load().cancel(nil)
	}
	return x.made.Load()
}

// state returns the context that was made, or nil if there is none and the request is in progress.
func (x *requestContext) state() *madeContext {
	if x.over.Load() {
		return x.make()
	}
	return x.made.Load()
}

// Deadline implements context.Context.
func (x *requestContext) Deadline() (time.Time, bool) {
	d, ok := x.Context.Deadline()
	if x.deadline.IsZero() || ok && d.Before(x.deadline) {
		return d, ok
	}
	return x.deadline, true
}

// Done implements context.Context.
func (x *requestContext) Done() <-chan struct{} { return x.make().Done() }

// Err implements context.Context.
func (x *requestContext) Err() error {
	if made := x.state(); made != nil {
		return made.Err()
	}
	if err := x.Context.Err(); err != nil {
		return err
	}
	if x.deadline.IsZero() || time.Now().Before(x.deadline) {
		return nil
	}
	return x.make().Err()
}

// Value implements context.Context. It is how package context finds the cause and the children.
func (x *requestContext) Value(key any) any {
	if made := x.state(); made != nil {
		return made.Value(key)
	}
	return x.Context.Value(key)
}

// causeOf returns why ctx has ended, or nil. Unlike context.Cause alone, it notices the deadline of a
// requestContext that nothing waits for.
func causeOf(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}
