package memlock

import (
	"context"
	"errors"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// watcher is a Watch in progress.
type watcher struct {
	prefix string
	events []backend.Event // not delivered yet
	behind bool            // there were too many
	some   chan struct{}   // capacity 1: there is something to do
}

// maxBehind is the number of undelivered events that a watcher may have.
const maxBehind = 1 << 16

var errBehind = errors.New("the watcher fell behind")

// emit sends the watchers an event of a lease.
func (s *Store) emit(kind backend.EventKind, l *lease, reason string) {
	if len(s.watchers) == 0 {
		return
	}
	e := lockstate.Event(s.rules(), kind, l, reason)
	for w := range s.watchers {
		if strings.HasPrefix(e.Name, w.prefix) {
			w.add(e)
		}
	}
}

func (w *watcher) add(e backend.Event) {
	if len(w.events) == maxBehind {
		w.behind = true
		return
	}
	w.events = append(w.events, e)
	select {
	case w.some <- struct{}{}:
	default:
	}
}

// Watch delivers the events of locks whose names start with req.Prefix, until ctx ends; the
// error is then ctx's cause. The first event is EventWatching. Other errors: *InvalidError,
// ErrClosed, and *UnavailableError when deliver is so slow that 65536 events are waiting for
// it.
func (b *Backend) Watch(ctx context.Context, req backend.WatchRequest, deliver func(backend.Event)) error {
	if err := backend.ValidatePrefix(req.Prefix); err != nil {
		return err
	}
	w := &watcher{prefix: req.Prefix, some: make(chan struct{}, 1)}
	if err := b.enter(ctx); err != nil {
		return err
	}
	w.add(backend.Event{Kind: backend.EventWatching, At: b.store.wall()})
	b.store.watchers[w] = struct{}{}
	b.store.leave()
	defer b.unwatch(w)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-b.done:
			return backend.ErrClosed
		case <-w.some:
		}
		events, behind := b.take(w)
		for _, e := range events {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			deliver(e)
		}
		if behind {
			return &backend.UnavailableError{Backend: name, Op: "watch", Err: errBehind}
		}
	}
}

// take returns the events of the watcher and empties it.
func (b *Backend) take(w *watcher) ([]backend.Event, bool) {
	b.store.enter()
	defer b.store.leave()
	events := w.events
	w.events = nil
	return events, w.behind
}

func (b *Backend) unwatch(w *watcher) {
	b.store.enter()
	defer b.store.leave()
	delete(b.store.watchers, w)
}
