package acquire

import (
	"context"
	"time"
)

// Within returns a context that ends with ctx, or with cause when d has elapsed, and the function that
// finishes it.
func Within(ctx context.Context, d time.Duration, cause error) (context.Context, func()) {
	r := within(ctx, d, cause)
	return r, r.finish
}

// Interruptible returns a context that ends with ctx, and the functions that finish it and end it.
func Interruptible(ctx context.Context) (context.Context, func(), func(error)) {
	r := &requestContext{Context: ctx}
	return r, r.finish, r.end
}

// CauseOf returns why ctx has ended, or nil.
func CauseOf(ctx context.Context) error { return causeOf(ctx) }
