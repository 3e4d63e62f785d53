package sqllease

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// A waiter sends nothing while it waits. A notification wakes it. For a holder that dies, and for
// notifications that get lost, there is one timer for all waiters of a value. It fires when the
// first of the leases before them can end, or after longestRest. Then one read finds what
// became of all of them.

const (
	longestRest = 30 * time.Second
	// afterFailure is how soon a read that failed is retried.
	afterFailure = 500 * time.Millisecond
	// margin is how much later than the end the timer fires, with jitter, so that not all values
	// read at the same time.
	margin = 2 * time.Millisecond
	jitter = 20 * time.Millisecond
	// leastRest is the least time between two reads.
	leastRest = 20 * time.Millisecond
	// least is the delay of an alarm that is due immediately.
	least = 500 * time.Microsecond
	// notificationTime is how long a notification may be in transit.
	notificationTime = 100 * time.Millisecond
)

// noteChange notes that something changed. mu is not held.
func (b *Leases) noteChange(at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.moved = at
}

// waiter is an Acquire, which is registered when its lease is in the queue.
type (
	waiter   = waiters.Waiter[ofWaiter]
	registry = waiters.Registry[ofWaiter, struct{}]
)

// ofWaiter is what is kept of a waiter in addition. Leases.mu guards it.
type ofWaiter struct {
	inQueue bool      // its place in the queue is committed
	place   int64     // in the queue; a grant has a greater number
	asked   time.Time // a local time before that
}

// stands notes that the waiter is in the queue, and that nothing changes before at. If its lease
// was in a notification before the reply, it is read now.
func (b *Leases) stands(w *waiter, place int64, asked, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.Own, b.moved = ofWaiter{true, place, asked}, asked
	if _, said := b.look.Leases[w.Key]; said {
		waiters.Signal(b.toLook)
	}
	b.schedule(at)
}

// Waiting reports whether a call waits in a queue.
func (b *Leases) Waiting() bool {
	waiting, _ := b.calls.Len()
	return waiting > 0
}

// known notes whether other values may free the locks of a transaction. A lease granted to
// another value is released there, so from now on this value polls for that.
func (b *Leases) known(t *txn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	waiting, _ := b.calls.Len()
	if waiting == 0 { // a new waiter reads its lock again
		clear(b.strange)
		return
	}
	for name, l := range t.locks {
		if l.QueueLen() == 0 || b.holdsAll(l) {
			delete(b.strange, name)
		} else if _, again := b.strange[name]; !again {
			b.strange[name], b.moved = struct{}{}, t.asked
			b.schedule(t.asked.Add(longestRest))
		}
	}
}

// holdsAll reports whether all holders of the lock live under sessions that were opened here. mu
// is held.
func (b *Leases) holdsAll(l *lock) bool {
	if len(l.Holders.Leases) == 0 {
		return false
	}
	for _, h := range l.Holders.Leases {
		if _, own := b.own[sessionOf(h)]; h.Timed || !own {
			return false
		}
	}
	return true
}

// forget notes that a call of Acquire has returned: nothing is read for it any more.
func (b *Leases) forget(k Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.calls.Of(k)) == 0 {
		delete(b.look.Leases, k)
	}
}

// schedule sets the alarm to fire at the time, unless it fires earlier. mu is held.
func (b *Leases) schedule(at time.Time) {
	now := time.Now()
	if rest := now.Add(longestRest); at.After(rest) {
		at = rest
	}
	if !b.hearing {
		pause := b.pace.Longest
		if len(b.strange) > 0 {
			pause = b.pace.After(now.Sub(b.moved))
		}
		if rest := now.Add(pause); at.After(rest) {
			at = rest
		}
	}
	if since := now.Sub(b.doubted); since < longestRest { // that commit may still be on its way
		if rest := now.Add(max(since, afterFailure)); at.After(rest) {
			at = rest
		}
	}
	if b.closed() || !b.alarmAt.IsZero() && !at.Before(b.alarmAt) {
		return
	}
	b.alarmAt = at
	rest := max(0, at.Sub(now))
	b.alarm.Reset(rest + min(margin+rand.N(jitter), rest/4+least)) //nolint:mnd // a quarter
}

// doubt has everything read, again and again for a while, after a commit without an answer: nobody told the
// waiters of this value what it granted them.
func (b *Leases) doubt() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.doubted = time.Now()
	b.schedule(b.doubted)
}

// wake runs when the alarm fires.
func (b *Leases) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.alarmAt = time.Time{}
	b.look.All = true
	waiters.Signal(b.toLook)
}

// readChanges reads what notifications, or the alarm, ask for.
func (b *Leases) readChanges() {
	for {
		select {
		case <-b.toLook:
		case <-b.life.Done():
			return
		}
		if err := b.lookOnce(b.life); err != nil && !b.closed() {
			b.mu.Lock()
			b.look.All = true
			b.schedule(time.Now().Add(afterFailure))
			b.mu.Unlock()
		}
	}
}

// glance is the subject of one read.
type glance struct {
	all      bool
	waiters  []*waiter
	sessions []backend.SessionID // with listeners
}

// scope returns what to read. The waiters themselves are read wherever the front of their queue is.
func (g *glance) scope() *Scope {
	s := &Scope{Sessions: slices.Clone(g.sessions), Listeners: g.sessions}
	for _, w := range g.waiters {
		s.Names, s.Back, s.Sessions = append(s.Names, w.Key.Name), append(s.Back, w.Key), append(s.Sessions, w.Session)
	}
	s.sorted()
	if !g.all { // how long the others live does not matter
		s.Front = make(map[string]int64)
		for _, name := range s.Names {
			s.Front[name] = 0
		}
	}
	return s
}

// next takes what there is to read. Notifications for a waiter, or a session, whose request is still in
// progress, remain.
func (b *Leases) next() glance {
	b.mu.Lock()
	defer b.mu.Unlock()
	said := b.look
	g := glance{all: said.All}
	b.look = waiters.Look{}
	for _, k := range b.calls.Leases() {
		if _, ok := said.Leases[k]; !ok && !g.all {
			continue
		}
		for _, w := range b.calls.Of(k) {
			if w.Own.inQueue {
				g.waiters = append(g.waiters, w)
			} else if _, ok := said.Leases[k]; ok {
				b.look.Lease(k)
			}
		}
	}
	for id := range b.calls.Sessions() {
		if _, ok := said.Sessions[id]; ok || g.all {
			g.sessions = append(g.sessions, id)
			delete(said.Sessions, id)
		}
	}
	for id := range said.Sessions {
		if known, _ := b.calls.Listens(id); known {
			b.look.Session(id)
		}
	}
	return g
}

// lookOnce reads what became of the waiters and listeners, and notifies them.
func (b *Leases) lookOnce(ctx context.Context) error {
	g := b.next()
	if len(g.waiters)+len(g.sessions) == 0 {
		return nil
	}
	s := g.scope()
	polls := g.all && b.addr == ""
	if polls { // often, so of long queues only the front
		s.Front = b.front(s.Names)
	}
	t, losses, err := b.readAsIs(ctx, opLook, s)
	if err != nil {
		return err
	}
	if polls {
		b.stood(t)
	}
	verdicts := make(map[*waiter]waiters.Verdict)
	var overdue []backend.SessionID
	for _, w := range g.waiters {
		if v, ok := t.verdict(w, g.all && b.addr != ""); ok {
			verdicts[w] = v
		} else if t.session(w.Session).overdue(t.now) {
			overdue = append(overdue, w.Session)
		}
	}
	for _, id := range g.sessions {
		switch s := t.session(id); {
		case s.over():
			losses = append(losses, backend.Loss{Session: id, Cause: backend.Cause(cmp.Or(s.cause, "gone"))})
		case s.overdue(t.now):
			overdue = append(overdue, id)
		}
	}
	if t.early && len(verdicts)+len(losses) > 0 {
		if err := b.synced(ctx, opLook); err != nil {
			return err
		}
	}
	for w, v := range verdicts {
		w.Give(v)
		b.noteChange(t.asked)
	}
	for _, x := range losses {
		b.tellLoss(x)
	}
	b.judge(overdue)
	if g.all {
		b.restAfter(t)
	}
	return nil
}

// restAfter sets the alarm for the remaining waiters after a read, and tends the locks in which something
// has expired.
func (b *Leases) restAfter(t *txn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	waited := make(map[string]struct{})
	for _, k := range b.calls.Leases() {
		waited[k.Name] = struct{}{}
	}
	maps.DeleteFunc(b.strange, func(name string, _ struct{}) bool { _, still := waited[name]; return !still })
	if len(waited) == 0 {
		return
	}
	at := t.asked.Add(longestRest)
	for name, l := range t.locks {
		d := t.bound(l)
		if d <= 0 {
			b.tend(name)
		}
		if end := t.asked.Add(max(d, leastRest)); end.Before(at) {
			at = end
		}
	}
	b.schedule(at)
}

// judge ends the sessions, in the background, except those whose renewal is on its way to the disk. It
// waits for that, and each session is in one transaction at a time.
func (b *Leases) judge(overdue []backend.SessionID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(overdue) == 0 || b.judging || b.closed() {
		return
	}
	b.judging = true
	slices.Sort(overdue)
	overdue = slices.Compact(overdue)
	r := newRequest("end sessions", Scope{Sessions: overdue, Kill: overdue}, func(*txn) error { return nil })
	b.work.Go(func() {
		ctx, cancel := context.WithTimeout(b.life, batchTime)
		defer cancel()
		err := b.alone(ctx, r)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.judging = false
		if err == nil { // who waits under one of them is told now
			b.look.All = true
			waiters.Signal(b.toLook)
		}
	})
}

// tend queues a request that ends what has expired in a lock, and hands over what it held, unless a
// batch has the lock now. mu is held.
func (b *Leases) tend(name string) {
	_, busy := b.busy[name]
	_, queued := b.tending[name]
	if b.closed() || busy || queued {
		return
	}
	b.tending[name] = struct{}{}
	r := newRequest("tend", Scope{Names: []string{name}}, func(*txn) error { return nil })
	r.tends = true
	b.queue = append(b.queue, r)
	b.launch()
}

// verdict returns what a read found for the waiter, and whether its wait has ended.
func (t *txn) verdict(w *waiter, byTimer bool) (waiters.Verdict, bool) {
	l := t.lock(w.Key.Name).Find(w.Key.ID)
	held := l != nil && l.State == lockstate.Held
	switch {
	case held && !l.Timed && sessionOf(l) != w.Session:
		return waiters.Verdict{Err: backend.ErrLost}, true // it will die with the other session
	case w.Session != "" && t.session(w.Session).over() && (!held || !l.Timed):
		return waiters.Verdict{Err: backend.ErrSessionLost}, true
	case l == nil:
		return waiters.Verdict{Err: backend.ErrLost}, true
	case held && !expired(l, t.now):
		grant, err := lockstate.Answer(t.rules(), l, w.Session, t.asked)
		// The notification of a grant made just now may still be in transit.
		grant.ByTimer = byTimer && t.now.Sub(l.Since) > notificationTime
		return waiters.Verdict{Grant: grant, Err: err}, true
	}
	return waiters.Verdict{}, false
}
