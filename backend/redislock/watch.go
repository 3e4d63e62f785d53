package redislock

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// The script publishes events only while there is a watcher: while a key exists that the
// watchers keep alive.
const (
	watchTTL   = 30 * time.Second
	watchEvery = watchTTL / 3
	// watchRoom is the number of events that may be queued for deliver.
	watchRoom = 4096
)

// Watch delivers events, over a connection of its own. If deliver was so slow that events
// were missed, it returns an *backend.UnavailableError. See backend.Backend.
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

// watch subscribes in one goroutine and delivers in this one.
func (b *Backend) watch(ctx context.Context, cancel context.CancelCauseFunc, prefix string, deliver func(backend.Event)) error {
	stream, err := b.announce(ctx)
	if err != nil {
		return err
	}
	events := make(chan backend.Event, watchRoom)
	ready, ended := make(chan struct{}), make(chan struct{})
	b.work.Go(func() {
		defer close(ended)
		err := b.link.listen(ctx, b.tag+"e:"+stream, func() { close(ready) }, func(payload string) {
			if e, ok := parseEvent(payload); ok && strings.HasPrefix(e.Name, prefix) {
				select {
				case events <- e:
				default:
					cancel(errMissed)
				}
			}
		})
		cancel(&sentError{err: err})
	})
	err = b.relay(ctx, stream, events, ready, deliver)
	cancel(err)
	<-ended
	return err
}

// relay delivers events until ctx ends, also because no more can be received.
func (b *Backend) relay(
	ctx context.Context, stream string, events <-chan backend.Event, ready <-chan struct{}, deliver func(backend.Event),
) error {
	late := time.NewTimer(b.cfg.RequestTimeout)
	defer late.Stop()
	select {
	case <-ready:
	case <-late.C:
		return &sentError{err: errListening}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := b.keepWatching(ctx, stream); err != nil {
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
			if err := b.keepWatching(ctx, stream); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// keepWatching keeps the events of the stream published. It returns errMissed if they were
// not.
func (b *Backend) keepWatching(ctx context.Context, stream string) error {
	now, err := b.announce(ctx)
	if err == nil && now != stream {
		err = &sentError{err: errMissed}
	}
	return err
}

// announce makes the script publish events, and returns the name of their stream.
func (b *Backend) announce(ctx context.Context) (string, error) {
	for {
		// A name each time: events may have been missed if the stream ended since the last.
		answer, _, err := b.engine.do(ctx, true, "watch", program.Millis(watchTTL), rand.Text())
		if err != nil {
			return "", err
		}
		d := decode(answer[1:])
		stream, more := d.Text(), d.Int() == 1
		if d.Err != nil || !more {
			return stream, d.Err
		}
	}
}
