package acquire

import (
	"context"
	"sync/atomic"
	"time"
)

// requestContext is the context of one request. Most requests are answered before any code waits for
// the end of their context, so the channel and the timer that such a wait needs are made on demand.
type requestContext struct {
	context.Context           //nolint:containedctx // the parent
	deadline        time.Time // zero: that of the parent alone
	cause           error     // of the end at the deadline
	made            atomic.Pointer[madeContext]
}

// madeContext is what package context makes of a requestContext.
type madeContext struct {
	context.Context //nolint:containedctx // this is a context
	cancel          context.CancelCauseFunc
}

// finished is what a requestContext becomes when its request has been answered.
var finished = func() *madeContext {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(nil)
	return &madeContext{ctx, cancel}
}()

// within returns a context that ends with ctx, or with cause when d has elapsed. Its caller finishes it.
func within(ctx context.Context, d time.Duration, cause error) *requestContext {
	return &requestContext{Context: ctx, deadline: time.Now().Add(d), cause: cause}
}

// finish ends the context when its request has been answered, and releases what was made for it.
func (x *requestContext) finish() {
	if !x.made.CompareAndSwap(nil, finished) {
		x.made.Load().cancel(nil)
	}
}

// end ends the context with a cause. It is for a context without a deadline of its own.
func (x *requestContext) end(cause error) { x.make().cancel(cause) }

// make makes the context, unless that has been done.
func (x *requestContext) make() *madeContext {
	if made := x.made.Load(); made != nil {
		return made
	}
	made := new(madeContext)
	if x.deadline.IsZero() {
		made.Context, made.cancel = context.WithCancelCause(x.Context)
	} else {
		ctx, stop := context.WithDeadlineCause(x.Context, x.deadline, x.cause)
		made.Context, made.cancel = ctx, func(error) { stop() }
	}
	if !x.made.CompareAndSwap(nil, made) {
		made.cancel(nil)
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
	if made := x.made.Load(); made != nil {
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
	switch made := x.made.Load(); made {
	case nil:
	case finished: // it has the cause, and no other values
		if v := made.Value(key); v != nil {
			return v
		}
	default:
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
