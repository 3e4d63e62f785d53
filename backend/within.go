package backend

import (
	"context"
	"errors"
	"time"
)

// Within returns a context that ends with ctx, and also when life ends, with life's cause: a
// backend's calls end when it is closed. If life has already ended, the context has ended too when
// Within returns, so that the next step that checks it sends nothing. The caller must call the
// returned function when it is done.
func Within(ctx, life context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if life.Err() != nil { // AfterFunc would report it a little later, from another goroutine
		cancel(context.Cause(life))
	}
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Begin begins a call of a backend whose life ends when it is closed, with ErrClosed as its cause. The context and the
// function that it returns are those of Within. Errors: life's cause, also where ctx has ended too; ctx's cause.
func Begin(ctx, life context.Context) (context.Context, func(), error) {
	if life.Err() != nil {
		return nil, nil, context.Cause(life)
	}
	if ctx.Err() != nil { // the context of a lock looks at the clock here, and may end before its timer
		return nil, nil, context.Cause(ctx)
	}
	within, leave := Within(ctx, life)
	return within, leave, nil
}

// NoAnswer is the cause of a context that ended because the store had not answered within d. It is
// context.DeadlineExceeded, which alone says nothing to an operator.
func NoAnswer(d time.Duration) error { return noAnswerError(d) }

type noAnswerError time.Duration

func (e noAnswerError) Error() string        { return "no answer within " + time.Duration(e).String() }
func (e noAnswerError) Is(target error) bool { return target == context.DeadlineExceeded }

// WithTimeout is [context.WithTimeout] for one request to a store: NoAnswer is the cause when d has elapsed.
func WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, NoAnswer(d))
}

// IsCause reports whether err, of a call with ctx, is no answer of the store but what ctx has ended with. The
// cause may look like an answer: the context of a lock ends with ErrLost, and that of an errgroup with the
// ErrHeld of another lock.
func IsCause(ctx context.Context, err error) bool {
	cause := context.Cause(ctx)
	return cause != nil && errors.Is(err, cause)
}
