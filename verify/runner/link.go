package runner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
)

var errLinkCut = errors.New("the link was cut")

// link is the network between a worker and a backend in the same process. It holds calls or
// their answers, and loses them. Calls that wait in the queue are cut too.
type link struct {
	backend.Backend
	mu      sync.Mutex
	held    [2]bool // requests, replies
	delay   time.Duration
	died    int64 // when the worker was killed, for good; 0: it lives
	changed chan struct{}
	cut     chan struct{} // closed when the calls in progress are lost
}

func newLink(b backend.Backend) *link {
	return &link{Backend: b, changed: make(chan struct{}), cut: make(chan struct{})}
}

// set changes the faults.
func (l *link) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *link) hold(requests, replies bool) { l.set(func() { l.held = [2]bool{requests, replies} }) }

func (l *link) slow(d time.Duration) { l.set(func() { l.delay = d }) }

func (l *link) heal() { l.set(func() { l.held, l.delay = [2]bool{}, 0 }) }

// lose drops the calls in progress, and those that arrive while requests are held.
func (l *link) lose() {
	l.set(func() { close(l.cut); l.cut = make(chan struct{}) })
}

func (l *link) kill() {
	l.set(func() {
		l.died = now()
		close(l.cut)
		l.cut = make(chan struct{})
	})
}

// deadAt reports whether the worker was dead at an instant.
func (l *link) deadAt(t int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.died != 0 && t > l.died
}

// pass waits until the link lets a message through.
func (l *link) pass(ctx context.Context, direction int) error {
	l.mu.Lock()
	cut := l.cut
	for n := 0; ; n++ {
		held, dead, delay, changed := l.held[direction], l.died != 0, l.delay, l.changed
		l.mu.Unlock()
		switch {
		case dead:
			return errLinkCut
		case !held && delay > 0 && n == 0:
			if !retry.Pause(ctx, delay) {
				return context.Cause(ctx)
			}
		case !held:
			return nil
		default:
			select {
			case <-changed:
			case <-cut:
				return errLinkCut
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		l.mu.Lock()
	}
}

// through sends a call over a link. mayHold is the MayHold of the error if the call is lost.
func through[T any](ctx context.Context, l *link, mayHold bool, f func(context.Context) (T, error)) (T, error) {
	var zero T
	if err := l.pass(ctx, 0); err != nil {
		return zero, l.away(ctx, err, false)
	}
	l.mu.Lock()
	cut := l.cut
	l.mu.Unlock()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-cut:
			stop(errLinkCut)
		case <-done:
		}
	})
	v, err := f(ctx)
	close(done)
	watch.Wait()
	if errors.Is(context.Cause(ctx), errLinkCut) {
		return zero, l.away(context.Background(), errLinkCut, mayHold)
	}
	if perr := l.pass(ctx, 1); perr != nil {
		return zero, l.away(ctx, perr, mayHold)
	}
	return v, err
}

func (l *link) away(ctx context.Context, err error, mayHold bool) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &backend.UnavailableError{Backend: l.Capabilities().Name, MayHold: mayHold, Err: err}
}

// OpenSession calls the backend over the link.
func (l *link) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	_, err := through(ctx, l, false, func(ctx context.Context) (struct{}, error) { return struct{}{}, l.Backend.OpenSession(ctx, req) })
	return err
}

// EndSession calls the backend over the link.
func (l *link) EndSession(ctx context.Context, id backend.SessionID) error {
	_, err := through(ctx, l, false, func(ctx context.Context) (struct{}, error) { return struct{}{}, l.Backend.EndSession(ctx, id) })
	return err
}

// Acquire calls the backend over the link.
func (l *link) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	asked := time.Now()
	g, err := through(ctx, l, true, func(ctx context.Context) (backend.Grant, error) { return l.Backend.Acquire(ctx, req) })
	if err == nil && !g.Waited {
		g.Asked = asked // from before it was sent
	}
	return g, err
}

// Renew calls the backend over the link.
func (l *link) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	return through(ctx, l, false, func(ctx context.Context) (backend.RenewResult, error) { return l.Backend.Renew(ctx, req) })
}

// Release calls the backend over the link.
func (l *link) Release(ctx context.Context, req backend.ReleaseRequest) error {
	_, err := through(ctx, l, true, func(ctx context.Context) (struct{}, error) { return struct{}{}, l.Backend.Release(ctx, req) })
	return err
}
