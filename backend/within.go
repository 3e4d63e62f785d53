package backend

import "context"

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
