package backend

import "context"

// Within is ctx, which also ends when life does, with its cause: a backend's calls end when it
// is closed. Where life is over already it has ended: what looks at it next sends nothing.
// The caller calls the function in the end.
func Within(ctx, life context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if life.Err() != nil { // AfterFunc would say so a little later, from another goroutine
		cancel(context.Cause(life))
	}
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() { stop(); cancel(nil) }
}
