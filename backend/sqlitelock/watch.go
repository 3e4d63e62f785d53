package sqlitelock

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// notWatching is the feed of a backend value that is not listed as a watcher in the file.
const notWatching int64 = -1

const (
	// watchTTL is how long events are written for a process that does not confirm that it still
	// watches.
	watchTTL = 30 * time.Second
	// eventTTL is how long an event is kept for watchers to read.
	eventTTL = time.Minute
)

var errAsleep = errors.New("the watcher slept for too long")

// emit records what happened to a lease, if there are watchers.
func (t *txn) emit(kind backend.EventKind, l *lease, reason string) {
	if int64(t.now) >= t.meta.watched {
		return
	}
	t.events = append(t.events, lockstate.Event(t, kind, l, reason))
}

// flushEvents writes the events and delivers them to the watchers, here and in other processes.
func (t *txn) flushEvents() {
	if len(t.events) == 0 {
		return
	}
	until := int64(t.now.add(eventTTL))
	for _, e := range t.events {
		t.meta.event++
		t.exec(`INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, t.meta.event, string(e.Kind), e.Name, string(e.Lease), e.Owner,
			int(e.Mode), int64(e.Token), e.Reason, e.At.UnixNano(), until) //nolint:gosec // it counts up from 0
	}
	t.dirty, t.events = true, nil
	for _, addr := range t.texts(`SELECT addr FROM watchers`) {
		t.notify(addr, eventsLine)
	}
	t.lookAtEvents()
}

// lookAtEvents delivers the events that the watchers have not got yet.
func (t *txn) lookAtEvents() {
	if t.feed == notWatching {
		return
	}
	var ends instant
	asleep := !t.one(`SELECT ends FROM watchers WHERE addr = ?`, []any{t.b.addr}, &ends) || ends <= t.now
	if !asleep && ends < t.now.add(watchTTL*2/3) {
		t.signOn()
	}
	seen := t.feed
	events := t.newEvents()
	if asleep || t.feed-seen != int64(len(events)) { // some were deleted
		t.feed = notWatching
		t.then(func() { t.b.stopWatchers(errAsleep) })
		return
	}
	t.then(func() { t.b.giveEvents(events) })
}

// newEvents reads the events after the last one that the watchers got.
func (t *txn) newEvents() []backend.Event {
	var events []backend.Event
	t.each(`SELECT n, kind, name, lease, owner, mode, token, reason, at FROM events WHERE n > ? ORDER BY n`, []any{t.feed}, func(scan func(...any)) {
		var e backend.Event
		var at int64
		scan(&t.feed, &e.Kind, &e.Name, &e.Lease, &e.Owner, &e.Mode, &e.Token, &e.Reason, &at)
		e.At = time.Unix(0, at)
		events = append(events, e)
	})
	return events
}

// signOn lists this backend value as a watcher, of what follows if it was not listed.
func (t *txn) signOn() {
	ends := t.now.add(watchTTL)
	t.exec(`INSERT INTO watchers VALUES (?, ?) ON CONFLICT (addr) DO UPDATE SET ends = excluded.ends`, t.b.addr, int64(ends))
	t.ends(ends)
	t.meta.watched, t.dirty = max(t.meta.watched, int64(ends)), true
	if t.feed == notWatching {
		t.feed = t.meta.event
	}
}

// signOff removes this backend value from the watchers. Without watchers there are no events.
func (t *txn) signOff() {
	t.feed = notWatching
	t.exec(`DELETE FROM watchers WHERE addr = ?`, t.b.addr)
	var last sql.NullInt64
	t.one(`SELECT max(ends) FROM watchers`, nil, &last)
	if !last.Valid {
		t.exec(`DELETE FROM events`)
	}
	t.meta.watched, t.dirty = last.Int64, true
}

// giveEvents delivers events to the watchers.
func (b *Backend) giveEvents(events []backend.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.watchers {
		for _, e := range events {
			w.Add(e)
		}
	}
}

func (b *Backend) stopWatchers(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.watchers {
		w.Stop(unavailable("watch", false, err))
	}
	clear(b.watchers)
}

// Watch delivers the events of locks whose names start with req.Prefix, the first of them
// EventWatching, until ctx ends; the error is then ctx's cause. Other errors: *InvalidError,
// ErrClosed, and *UnavailableError when the store fails, when the process slept for 30 s, or when
// deliver is so slow that 65536 events are waiting for it: events are missing then.
func (b *Backend) Watch(ctx context.Context, req backend.WatchRequest, deliver func(backend.Event)) error {
	if err := backend.ValidatePrefix(req.Prefix); err != nil {
		return err
	}
	w := waiters.NewWatcher(backendName, req.Prefix, b.host.wall().Round(0))
	defer b.unwatch(w)
	var r *request
	r = newRequest("watch", false, func(t *txn) error {
		t.flushEvents() // the earlier events
		t.lookAtEvents()
		t.signOn()
		t.then(func() { b.watch(w, r) })
		return nil
	})
	if err := b.do(ctx, nil, r); err != nil {
		return err
	}
	return b.orEnded("watch", w.Deliver(ctx, b.life.Done(), deliver))
}

// watch adds a watcher, unless its call has returned.
func (b *Backend) watch(w *waiters.Watcher, r *request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.Wanted() {
		b.watchers[w] = struct{}{}
	}
}

// unwatch removes a watcher. The next transaction unregisters the backend value if it was the last one; when
// that fails the others write events for watchTTL more.
func (b *Backend) unwatch(w *waiters.Watcher) {
	b.mu.Lock()
	delete(b.watchers, w)
	b.mu.Unlock()
	b.lookAt(notification{events: true})
}
