package sqlitelock

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// waiter is an Acquire, which is registered when its lease is in the queue. For each session that is
// listened to, the registry has when it ends if it is not renewed through this backend value.
type (
	waiter   = waiters.Waiter[struct{}]
	registry = waiters.Registry[struct{}, instant]
)

// readInbox receives the notifications of other processes.
func (b *Backend) readInbox() {
	if b.inbox == nil {
		return
	}
	err := b.inbox.receive(b.lookAt)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		b.log.Warn("the socket failed: hand-overs are found by timer", slog.String("path", b.path), slog.String("error", err.Error()))
	}
}

// lookAt has the writer read what the notification names.
func (b *Backend) lookAt(l notification) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look.add(&l)
	waiters.Signal(b.queued)
}

// recheck is how often at least a value with waiters or watchers reads the file when no notification
// arrives: a notification may be lost, and its sender may have died before it sent it. What ends since the
// last read may be new, and known only to processes that died: it is found within the ExpiryLag. It is 0.1 ms
// of work.
const recheck = time.Second

// nextAlarm returns what fires when there is something to do without a notification: when something ends, and
// when a notification may have been lost. Nothing in the file ends before due.
func (b *Backend) nextAlarm(due instant) <-chan time.Time {
	now := b.host.now()
	next := never
	if leases, _ := b.calls.Len(); leases > 0 || b.feed != notWatching {
		// Once set it stays: a busy value would otherwise postpone it forever.
		if b.checkAt == never {
			b.checkAt = now.add(recheck - rand.N(recheck/4)) // so that processes do not read at the same time
		}
		next = min(b.checkAt, due)
	} else {
		b.checkAt = never
	}
	for _, ends := range b.calls.Sessions() {
		next = min(next, ends)
	}
	if next == never {
		return nil
	}
	const spread = 10 * time.Millisecond // so that not all act on the same end at the same time
	return time.After(max(0, time.Duration(next-now)) + time.Millisecond + rand.N(spread))
}

// lookRequest returns a request to read what there is to read, or nil. Backend.mu is held.
func (b *Backend) lookRequest() *request {
	l, byTimer := b.look, b.byTimer
	if l.Empty() && !l.events {
		return nil
	}
	b.look, b.byTimer = notification{}, false
	if l.All {
		l.events = true
		for _, k := range b.calls.Leases() {
			l.Lease(k)
		}
		for id := range b.calls.Sessions() {
			l.Session(id)
		}
	}
	r := newRequest("look", false, func(t *txn) error {
		t.look(&l, byTimer)
		return nil
	})
	r.Take()
	return r
}

// look notifies those that wait, listen or watch here of what has happened.
func (t *txn) look(l *notification, byTimer bool) {
	for k := range l.Leases {
		t.lookAtLease(k, byTimer)
	}
	for id := range l.Sessions {
		t.lookAtSession(id)
	}
	if !l.events {
		return
	}
	t.b.mu.Lock()
	watched := len(t.b.watchers) > 0
	t.b.mu.Unlock()
	if watched {
		t.lookAtEvents()
	} else if t.feed != notWatching {
		t.signOff()
	}
}

func (t *txn) lookAtLease(k lockstate.Key, byTimer bool) {
	lk := t.lock(k.Name)
	l := lk.Find(k.ID)
	switch {
	case l == nil:
		t.lookAtNobody(k)
	case l.State == lockstate.Held:
		// The notification of a grant made just now may still be in transit.
		const way = 100 * time.Millisecond
		t.resolve(l, nil, byTimer && t.wall.Sub(l.Since) > way)
	}
}

// lookAtNobody notifies waiters that their lease does not exist any more.
func (t *txn) lookAtNobody(k lockstate.Key) {
	for _, w := range t.b.calls.Of(k) {
		err := backend.ErrLost
		if w.Session != "" && t.session(w.Session) == nil {
			err = backend.ErrSessionLost
		}
		t.then(func() { w.Give(waiters.Verdict{Err: err}) })
	}
}

func (t *txn) lookAtSession(id backend.SessionID) {
	if x := t.session(id); x != nil {
		t.lives(x)
		for _, loss := range t.losses(id) {
			t.then(func() { t.b.calls.Report(loss) })
		}
		return
	}
	cause, _ := t.tomb(string(id), "")
	if cause == "" {
		cause = string(backend.CauseGone)
	}
	t.then(func() {
		t.b.calls.Report(backend.Loss{Session: id, Cause: backend.Cause(cause)})
		t.b.calls.Forget(id)
	})
}
