package holdfast_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
)

// brief is a backend whose streams break as soon as they have begun, or after a while.
type brief struct {
	backend.Backend
	lasts  atomic.Int64
	begins atomic.Int64
	at     atomic.Pointer[time.Time] // when the newest began
}

func (b *brief) Watch(ctx context.Context, _ backend.WatchRequest, deliver func(backend.Event)) error {
	now := time.Now()
	b.at.Store(&now)
	b.begins.Add(1)
	deliver(backend.Event{Kind: backend.EventWatching})
	sleep(ctx, time.Duration(b.lasts.Load()))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &backend.UnavailableError{Backend: "test", Op: "watch", Err: errors.New("the stream broke")}
}

// A stream that breaks at its start each time, as through a proxy that does not support streams, is
// retried less and less often. A stream that broke after it had lasted is retried immediately.
func TestWatchThatBreaksAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFaults(t)
		b := &brief{Backend: f.Backend}
		f.Backend = b
		c := newClient(t, f, holdfast.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- c.Watch(ctx, "", func(holdfast.Event) {}) }()
		time.Sleep(time.Minute)
		if n := b.begins.Load(); n > 70 {
			t.Errorf("a stream that breaks immediately was opened %d times in a minute", n)
		}
		b.lasts.Store(int64(time.Minute))
		time.Sleep(5 * time.Second) // the next stream lasts
		lasting := *b.at.Load()
		time.Sleep(time.Minute)
		if late := b.at.Load().Sub(lasting) - time.Minute; late < 0 || late > 100*time.Millisecond {
			t.Errorf("it began again %s after a stream that had lasted for a minute", late)
		}
		cancel()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
