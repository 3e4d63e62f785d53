package acquire

import (
	"context"
	"sync"
	"time"
)

// requestContext is the context of one request. Most requests are answered before any code waits for
// the end of their context, so the channel and the timer that such a wait needs are made on demand. The
// zero value of what follows the parent is a context that ends with its parent.
type requestContext struct {
	context.Context           //nolint:containedctx // the parent
	deadline        time.Time // zero: that of the parent alone
	cause           error     // of the end at the deadline

	mu     sync.Mutex
	made   context.Context //nolint:containedctx // this context, as package context makes it; nil until it is needed
	cancel context.CancelCauseFunc
	over   bool
}

// within returns a context that ends with ctx, or with cause when d has elapsed. Its caller finishes it.
func within(ctx context.Context, d time.Duration, cause error) *requestContext {
	return &requestContext{Context: ctx, deadline: time.Now().Add(d), cause: cause}
}

// finish says that the request has been answered: the context ends, and what was made for it is released.
func (x *requestContext) finish() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	if x.made != nil {
		x.cancel(nil)
	}
}

// end ends the context with a cause.
func (x *requestContext) end(cause error) {
	x.make()
	x.cancel(cause)
}

// make makes the context that this one stands for.
func (x *requestContext) make() context.Context {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.made != nil {
		return x.made
	}
	ctx, cancel := context.WithCancelCause(x.Context)
	x.made, x.cancel = ctx, cancel
	if !x.deadline.IsZero() {
		timed, stop := context.WithDeadlineCause(ctx, x.deadline, x.cause)
		x.made, x.cancel = timed, func(cause error) { cancel(cause); stop() }
	}
	if x.over {
		x.cancel(nil)
	}
	return x.made
}

// present returns the context that make has made, or nil.
func (x *requestContext) present() context.Context {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.made
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
	if made := x.present(); made != nil {
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
	if made := x.present(); made != nil {
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
