package sqlitelock

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// watcher is a Watch in progress. Backend.mu guards its fields.
type watcher struct {
	*waiters.Watcher // nil: it has not begun

	seen int64 // the last event that it got
	gone bool  // the call has returned
}

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
		if addr != t.b.addr {
			t.notificationTo(addr).Events = true
		}
	}
	t.lookAtEvents()
}

// lookAtEvents delivers to the watchers what they have not seen yet.
func (t *txn) lookAtEvents() {
	b := t.b
	seen, watched := b.seen()
	if !watched || t.err != nil {
		return
	}
	var ends instant
	asleep := !t.one(`SELECT ends FROM watchers WHERE addr = ?`, []any{b.addr}, &ends) || ends <= t.now
	if !asleep && ends < t.now.add(watchTTL*2/3) {
		t.signOn()
	}
	events, last := t.eventsAfter(seen)
	if asleep || last-seen != int64(len(events)) { // some were deleted
		t.then(func() { b.stopWatchers(errAsleep) })
		return
	}
	t.then(func() { b.giveEvents(events, last) })
}

// eventsAfter reads the events after the one that was seen last, and the number of the last one.
func (t *txn) eventsAfter(seen int64) ([]backend.Event, int64) {
	var events []backend.Event
	last := seen
	t.each(`SELECT n, kind, name, lease, owner, mode, token, reason, at FROM events WHERE n > ? ORDER BY n`, []any{seen}, func(scan func(...any)) {
		var e backend.Event
		var at int64
		scan(&last, &e.Kind, &e.Name, &e.Lease, &e.Owner, &e.Mode, &e.Token, &e.Reason, &at)
		e.At = time.Unix(0, at)
		events = append(events, e)
	})
	return events, last
}

// signOn registers this backend value as a watcher.
func (t *txn) signOn() {
	ends := t.now.add(watchTTL)
	t.exec(`INSERT INTO watchers VALUES (?, ?) ON CONFLICT (addr) DO UPDATE SET ends = excluded.ends`, t.b.addr, int64(ends))
	t.ends(ends)
	t.signedOn = true
	t.meta.watched, t.dirty = max(t.meta.watched, int64(ends)), true
}

// signOff removes this backend value from the watchers, unless a Watch has begun in the meantime. Without
// watchers there are no events.
func (t *txn) signOff() error {
	if _, watched := t.b.seen(); watched || t.signedOn {
		return nil
	}
	t.exec(`DELETE FROM watchers WHERE addr = ?`, t.b.addr)
	var last sql.NullInt64
	t.one(`SELECT max(ends) FROM watchers`, nil, &last)
	if !last.Valid {
		t.exec(`DELETE FROM events`)
	}
	t.meta.watched, t.dirty = last.Int64, true
	return nil
}

// seen returns the last event that all watchers got, and whether there are watchers.
func (b *Backend) seen() (int64, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := int64(math.MaxInt64)
	for w := range b.watchers {
		seen = min(seen, w.seen)
	}
	return seen, len(b.watchers) > 0
}

// giveEvents delivers events, up to the last one, to the watchers that have not seen them.
func (b *Backend) giveEvents(events []backend.Event, last int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := last - int64(len(events)) + 1
	for w := range b.watchers {
		for i, e := range events {
			if first+int64(i) > w.seen {
				w.Add(e)
			}
		}
		w.seen = max(w.seen, last)
	}
}

func (b *Backend) stopWatchers(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.watchers {
		w.Stop(unavailable("watch", false, err))
	}
}

// Watch delivers the events of locks whose names start with req.Prefix, the first of them
// EventWatching, until ctx ends; the error is then ctx's cause. Other errors: *InvalidError,
// ErrClosed, and *UnavailableError when the store fails, when the process slept for 30 s, or when
// deliver is so slow that 65536 events are waiting for it: events are missing then.
func (b *Backend) Watch(ctx context.Context, req backend.WatchRequest, deliver func(backend.Event)) error {
	if err := backend.ValidatePrefix(req.Prefix); err != nil {
		return err
	}
	w := new(watcher)
	defer b.unwatch(w)
	err := b.do(ctx, newRequest("watch", false, func(t *txn) error {
		t.flushEvents() // the earlier events
		t.signOn()
		event, begun := t.meta.event, waiters.NewWatcher(backendName, req.Prefix, t.wall.Round(0))
		t.then(func() { b.watch(w, begun, event) })
		return nil
	}))
	if err != nil {
		return err
	}
	return w.Deliver(ctx, b.life.Done(), deliver)
}

// watch begins a Watch for what follows the event.
func (b *Backend) watch(w *watcher, begun *waiters.Watcher, event int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.gone {
		return
	}
	w.Watcher, w.seen = begun, event
	b.watchers[w], b.signedOn = struct{}{}, true
	b.look.Events = true // other events of the transaction in which it registered
	waiters.Signal(b.queued)
}

// unwatch removes the watcher; the last one unregisters the backend value.
func (b *Backend) unwatch(w *watcher) {
	b.mu.Lock()
	w.gone = true
	_, was := b.watchers[w]
	delete(b.watchers, w)
	last := was && len(b.watchers) == 0
	b.mu.Unlock()
	if last {
		// No caller waits for it. When it fails the others write events for watchTTL more.
		_ = b.enqueue(newRequest("watch", false, (*txn).signOff))
	}
}
