package redislock

import (
	"context"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// The script publishes events only while somebody watches: while a key is there that
// the watchers keep.
const (
	watchTTL   = 30 * time.Second
	watchEvery = watchTTL / 3
	// watchRoom is how many events may wait for deliver.
	watchRoom = 4096
)

// Watch delivers events, over a connection of its own. It returns an
// *backend.UnavailableError also when deliver was so slow that events were missed. See
// backend.Backend.
func (b *Backend) Watch(ctx context.Context, req backend.WatchRequest, deliver func(backend.Event)) error {
	const op = "watch"
	if err := backend.ValidatePrefix(req.Prefix); err != nil {
		return err
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return backend.ErrClosed
	}
	b.work.Add(1)
	b.mu.Unlock()
	defer b.work.Done()

	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(b.base, func() { cancel(backend.ErrClosed) })()
	err := b.watch(within, cancel, req.Prefix, deliver)
	switch {
	case b.base.Err() != nil:
		return backend.ErrClosed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return readOnly(toKind(op, err))
	}
}

// watch listens in one goroutine and delivers in this one.
func (b *Backend) watch(ctx context.Context, cancel context.CancelCauseFunc, prefix string, deliver func(backend.Event)) error {
	events := make(chan backend.Event, watchRoom)
	ready := make(chan struct{})
	ended := make(chan error, 1)
	b.work.Go(func() {
		ended <- b.link.listen(ctx, b.tag+"e", func() { close(ready) }, func(payload string) {
			if e, ok := parseEvent(payload); ok && strings.HasPrefix(e.Name, prefix) {
				select {
				case events <- e:
				default:
					cancel(errMissed)
				}
			}
		})
	})
	err := b.relay(ctx, events, ready, ended, deliver)
	cancel(err)
	<-ended //nolint:errcheck // relay has seen it
	return err
}

func (b *Backend) relay(ctx context.Context, events <-chan backend.Event, ready <-chan struct{}, ended chan error, deliver func(backend.Event)) error {
	late := time.NewTimer(b.cfg.RequestTimeout)
	defer late.Stop()
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		return &sentError{err: err}
	case <-late.C:
		return &sentError{err: errListening}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if _, err := b.announce(ctx); err != nil {
		return err
	}
	deliver(backend.Event{Kind: backend.EventWatching})
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case e := <-events:
			deliver(e)
		case <-tick.C:
			known, err := b.announce(ctx)
			if err != nil {
				return err
			}
			if !known {
				return &sentError{err: errMissed}
			}
		case err := <-ended:
			ended <- err
			return &sentError{err: err}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// announce keeps the events coming. It reports whether they came until now.
func (b *Backend) announce(ctx context.Context) (bool, error) {
	answer, _, err := b.engine.do(ctx, true, "watch", millis(watchTTL))
	if err != nil {
		return false, err
	}
	d := decoder{list: answer[1:]}
	known := d.int() == 1
	return known, d.err
}
