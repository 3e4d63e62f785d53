package sqlitelock

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// waiter is an Acquire whose lease is in the queue.
type waiter struct {
	key     leaseKey
	session backend.SessionID
	given   chan answer // capacity 1, never closed
	gone    bool        // guarded by Backend.mu: the call has returned
}

// answer ends the wait.
type answer struct {
	grant backend.Grant
	err   error
}

// give answers the waiter; a second answer is dropped.
func (w *waiter) give(a answer) {
	select {
	case w.given <- a:
	default:
	}
}

// await registers a waiter.
func (b *Backend) await(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !w.gone && !slices.Contains(b.waiting[w.key], w) {
		b.waiting[w.key] = append(b.waiting[w.key], w)
	}
}

// forget notes that the call of the waiter returns.
func (b *Backend) forget(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.gone = true
	ws := slices.DeleteFunc(b.waiting[w.key], func(x *waiter) bool { return x == w })
	if len(ws) > 0 {
		b.waiting[w.key] = ws
	} else {
		delete(b.waiting, w.key)
	}
}

func (b *Backend) waitersOf(key leaseKey) []*waiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.waiting[key])
}

// listen registers a listener of losses.
func (b *Backend) listen(id backend.SessionID, l *listener) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions[id] = l
}

func (b *Backend) unlisten(id backend.SessionID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.sessions, id)
	b.final.Drop(id)
}

// renewed moves the time at which to check whether a session has ended.
func (b *Backend) renewed(id backend.SessionID, ends instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l, ok := b.sessions[id]; ok {
		l.ends = ends
	}
}

// tellLoss reports a loss to the listener of the session, once.
func (b *Backend) tellLoss(id backend.SessionID, loss backend.Loss) {
	b.final.Add(loss)
	b.mu.Lock()
	l, ok := b.sessions[id]
	if ok {
		if _, again := l.told[loss.Lease]; again || b.closed {
			ok = false
		}
		l.told[loss.Lease] = struct{}{}
	}
	b.mu.Unlock()
	if ok {
		l.tell(loss)
	}
}

// readMail receives the notifications of other processes.
func (b *Backend) readMail() {
	if b.mail == nil {
		return
	}
	err := b.mail.receive(func(p []byte) {
		b.lookAt(decodeLetter(p))
	})
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		b.log.Warn("the socket failed: hand-overs are found by timer", slog.String("path", b.path), slog.String("error", err.Error()))
	}
}

// lookAt has the writer read what the notification names, as far as it concerns this backend
// value.
func (b *Backend) lookAt(l letter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	mine := letter{all: l.all && b.curious(), events: l.events && len(b.watchers) > 0}
	for k := range l.leases {
		if len(b.waiting[k]) > 0 {
			mine.add(letter{leases: map[leaseKey]struct{}{k: {}}})
		}
	}
	for id := range l.sessions {
		if _, ok := b.sessions[id]; ok {
			mine.add(letter{sessions: map[backend.SessionID]struct{}{id: {}}})
		}
	}
	if b.closed || mine.empty() {
		return
	}
	b.look.add(mine)
	kick(b.queued)
}

// curious reports whether anything that other values do concerns this backend value.
func (b *Backend) curious() bool {
	return len(b.waiting) > 0 || len(b.watchers) > 0 || len(b.sessions) > 0
}

// recheck is about how often a value with waiters or watchers reads the file when no notification
// arrives: a notification may be lost, and its sender may have died before it sent it. It is 0.1
// ms of work.
const recheck = 2 * time.Second

// setAlarm sets the alarm to the next time when there is something to do without a notification:
// when something ends, and when a notification may have been lost.
func (b *Backend) setAlarm() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.broken != nil {
		return
	}
	now := b.host.now()
	next := never
	if len(b.waiting) > 0 || len(b.watchers) > 0 {
		// Once set it stays: a busy value would otherwise postpone it forever.
		if b.checkAt == never {
			const half = recheck / 2
			b.checkAt = now.add(recheck - half/2 + rand.N(half)) // so that processes do not read at the same time
		}
		next = min(b.checkAt, b.due)
	} else {
		b.checkAt = never
	}
	for _, l := range b.sessions {
		next = min(next, l.ends)
	}
	if next == never {
		b.alarm.Stop()
		return
	}
	const spread = 10 * time.Millisecond // so that not all act on the same end at the same time
	b.alarm.Reset(max(0, time.Duration(next-now)) + time.Millisecond + rand.N(spread))
}

// rouse runs when the alarm fires.
func (b *Backend) rouse() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !b.curious() {
		return
	}
	b.checkAt = never
	b.byTimer = true
	b.look.all = true
	kick(b.queued)
}

// lookRequest returns a request to read what there is to read. Backend.mu is held.
func (b *Backend) lookRequest() *request {
	l, byTimer := b.look, b.byTimer
	b.look, b.byTimer = letter{}, false
	if l.all {
		l.events = true
		for k := range b.waiting {
			l.add(letter{leases: map[leaseKey]struct{}{k: {}}})
		}
		for id := range b.sessions {
			l.add(letter{sessions: map[backend.SessionID]struct{}{id: {}}})
		}
	}
	r := &request{op: "look", done: make(chan struct{}), run: func(t *txn) error {
		t.look(&l, byTimer)
		return nil
	}}
	r.take()
	return r
}

// look notifies those that wait, listen or watch here of what has happened.
func (t *txn) look(l *letter, byTimer bool) {
	for k := range l.leases {
		t.lookAtLease(k, byTimer)
	}
	for id := range l.sessions {
		t.lookAtSession(id)
	}
	if l.events {
		t.lookAtEvents()
	}
}

func (t *txn) lookAtLease(k leaseKey, byTimer bool) {
	lk := t.lock(k.name)
	l := lk.Find(k.id)
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
func (t *txn) lookAtNobody(k leaseKey) {
	for _, w := range t.b.waitersOf(k) {
		err := backend.ErrLost
		if w.session != "" && t.session(w.session) == nil {
			err = backend.ErrSessionLost
		}
		t.deliveries = append(t.deliveries, delivery{give: func(error) { w.give(answer{err: err}) }})
	}
}

func (t *txn) lookAtSession(id backend.SessionID) {
	if x := t.session(id); x != nil {
		t.after = append(t.after, func() { t.b.renewed(id, x.ends) })
		for _, loss := range t.losses(id) {
			t.deliveries = append(t.deliveries, delivery{give: func(error) { t.b.tellLoss(id, loss) }})
		}
		return
	}
	cause, _ := t.tomb(string(id), "")
	if cause == "" {
		cause = string(backend.CauseGone)
	}
	t.deliveries = append(t.deliveries, delivery{give: func(error) {
		t.b.tellLoss(id, backend.Loss{Session: id, Cause: backend.Cause(cause)})
		t.b.unlisten(id)
	}})
}

// write adds a notification for another backend value to the transaction.
func (t *txn) write(addr string, l letter) {
	if addr == "" {
		return
	}
	old := t.letters[addr]
	old.add(l)
	t.letters[addr] = old
}

// sendState is the outcome of sending a datagram.
type sendState uint8

const (
	sent     sendState = iota
	sendFull           // the mailbox is full: try again
	sendGone           // the socket has no listener
)

// post sends a notification, or leaves it to carry when the mailbox is full.
func (b *Backend) post(addr string, l letter) {
	if b.mail == nil || b.mail.send(addr, l.encode()) != sendFull {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.parcels[addr]
	old.add(l)
	b.parcels[addr] = old
	kick(b.undelivered)
}

// carry resends notifications that did not fit. A mailbox has room for a few, and its owner is
// quick. So carry resends for about a second, and then leaves them to the timers of the other
// side, which may be stopped.
func (b *Backend) carry() {
	const first, last, tries = time.Millisecond, 200 * time.Millisecond, 12
	for {
		select {
		case <-b.undelivered:
		case <-b.life.Done():
			return
		}
		pause := first
		for range tries {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-b.life.Done():
				timer.Stop()
				return
			}
			if b.carryOnce() {
				break
			}
			pause = min(2*pause, last)
		}
		b.mu.Lock()
		if n := len(b.parcels); n > 0 {
			b.log.Debug("letters could not be delivered", slog.Int("mailboxes", n))
		}
		clear(b.parcels)
		b.mu.Unlock()
	}
}

// carryOnce tries to deliver what is left, and reports whether nothing is left.
func (b *Backend) carryOnce() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for addr, l := range b.parcels {
		if b.mail.send(addr, l.encode()) != sendFull {
			delete(b.parcels, addr)
		}
	}
	return len(b.parcels) == 0
}
