package memlock

import (
	"context"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// emit sends the watchers an event of a lease.
func (s *Store) emit(kind backend.EventKind, l *lease, reason string) {
	if len(s.watchers) == 0 {
		return
	}
	e := lockstate.Event(s.rules(), kind, l, reason)
	for w := range s.watchers {
		w.Add(e)
	}
}

// Watch delivers the events of locks whose names start with req.Prefix, until ctx ends; the
// error is then ctx's cause. The first event is EventWatching. Other errors: *InvalidError,
// ErrClosed, and *UnavailableError when deliver is so slow that 65536 events are waiting for
// it.
func (b *Backend) Watch(ctx context.Context, req backend.WatchRequest, deliver func(backend.Event)) error {
	if err := b.enter(ctx, backend.ValidatePrefix(req.Prefix)); err != nil {
		return err
	}
	w := waiters.NewWatcher(name, req.Prefix, b.store.wall())
	b.store.watchers[w] = struct{}{}
	b.store.leave()
	defer b.unwatch(w)
	return w.Deliver(ctx, b.done, deliver)
}

func (b *Backend) unwatch(w *waiters.Watcher) {
	b.store.enter()
	defer b.store.leave()
	delete(b.store.watchers, w)
}
