package connlease

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// lease is an acquisition. Its states, and what ends each of them:
//
//	             the lock is tried:                 released, or   marked     the database
//	             granted    refused                 abandoned                 refuses the try
//	asked for    held       waits, if a caller      gone           -          gone
//	                        does; otherwise gone
//	waits        held       waits                   gone           -          gone
//	held         -          -                       gone           gone       -
//
// A lease that waits and is queued in the store is also removed there (Work.Leave) when it is gone. One
// that is held is released there (Work.Free). A lease that is given up while it is tried is not a state:
// what callers want is done when the answer is known.
type lease struct {
	req     backend.AcquireRequest
	callers []*caller      // that wait for its answer
	wait    bool           // one of its callers waits, so it stays in the queue when it is refused
	waits   bool           // it was refused, and stays
	queued  bool           // it may be in the store's queue
	grant   *backend.Grant // it is held; otherwise nil
}

func (l *lease) key() Key { return Key{Name: l.req.Name, ID: l.req.Lease} }

// caller is a call of Acquire.
type caller struct {
	wait   bool
	answer chan answer // capacity 1
	waits  atomic.Bool // the lease is known to wait
}

// answer is what a caller gets.
type answer struct {
	grant backend.Grant
	err   error
	stays bool // the lease waits for another caller, and may be granted
}

// errRefused: the request does not wait, and the lock is not free.
var errRefused = errors.New("refused")

// turn is what the requests of a lock are due for. A later one includes those before.
type turn uint8

const (
	toQueue turn = iota + 1 // those that wait are queued in the store
	toPoll                  // the front is tried, because of the timer
	toTry                   // the front is tried, because the lock may be free
)

// maxTries is how many locks are tried together.
const maxTries = 256

// ask finds the lease of a request, or appends it to the queue, for a caller.
func (s *session) ask(req backend.AcquireRequest, c *caller) {
	k := Key{Name: req.Name, ID: req.Lease}
	if s.abandoned.Has(k) {
		c.answer <- answer{err: backend.ErrLost}
		return
	}
	l, known := s.leases[k]
	switch {
	case !known:
		l = &lease{req: req}
		s.leases[k] = l
		s.queues[req.Name] = append(s.queues[req.Name], l)
		s.moved = time.Now()
	case l.grant != nil:
		c.answer <- answer{grant: *l.grant}
		return
	}
	l.callers = append(l.callers, c)
	l.wait = l.wait || req.Wait
	switch queue := s.queues[req.Name]; {
	case l.waits, !known && !l.wait && len(s.held[req.Name]) > 0 && s.front(req.Name) < len(queue):
		s.refuse(l)
	case l.wait && len(queue) > 1 && queue[0].queued && queue[0].req.Mode == backend.Exclusive: // a try is of no use
		s.isDue(req.Name, toQueue)
	default:
		s.isDue(req.Name, toTry)
	}
}

// front returns how many requests of the queue of a lock the leases of this session admit. The
// database would grant any of them the lock, because it is the same connection.
func (s *session) front(name string) int {
	return backend.Admit(claims(s.held[name]), claims(s.queues[name]))
}

func claims(all []*lease) []backend.Claim {
	cs := make([]backend.Claim, 0, len(all))
	for _, l := range all {
		cs = append(cs, l.req.Claim())
	}
	return cs
}

// isDue has the requests of a lock sent with the next work.
func (s *session) isDue(name string, t turn) { s.due[name] = max(s.due[name], t) }

// giveUp releases a lease, or its place in the queue. An abandoned one is never granted afterwards. The caller
// gets its answer, with room in the channel, when the store has nothing of it any more.
func (s *session) giveUp(k Key, abandon bool, answer chan<- error) {
	if abandon {
		s.abandoned.Add(k)
	}
	var err error
	switch l, ok := s.leases[k]; {
	case !ok && !abandon:
		err = backend.ErrLost
	case !ok: // gone, or it never was
	case l.grant != nil:
		s.free(l)
	default:
		s.drop(l, backend.ErrLost)
	}
	s.next.done = append(s.next.done, func() { answer <- err })
}

// gather does what callers want, and returns the work to be sent now, or nil.
func (s *session) gather() *Work {
	s.mu.Lock()
	posted := s.posted
	s.posted = nil
	s.mu.Unlock()
	for _, f := range posted {
		f()
	}
	now := time.Now()
	if s.ending || !now.Before(s.deadline) {
		return &Work{End: true, Left: endTime}
	}
	if look := s.nextLook(); !look.IsZero() && !now.Before(look) {
		s.next.Look = true
	}
	if !s.again.IsZero() && !now.Before(s.again) {
		s.again = time.Time{}
		for name := range s.queues {
			s.isDue(name, toPoll)
		}
	}
	for name, t := range s.due {
		if len(s.next.Try) >= maxTries {
			break
		}
		delete(s.due, name)
		s.collect(name, t)
	}
	if s.again.IsZero() && len(s.queues) > 0 {
		s.again = now.Add(s.b.cfg.Rest.About(now.Sub(s.moved)))
	}
	w := s.next
	s.next = new(Work)
	return s.complete(w, now)
}

// complete sets what follows from the rest of the work. It is nil if there is nothing to send.
func (s *session) complete(w *Work, now time.Time) *Work {
	w.Left = s.deadline.Sub(now)
	if w.Renew {
		w.Left = s.ttl // its holders count on the whole TTL from now on
	}
	if w.Renew || w.Look {
		s.looked = now
	}
	if w.isEmpty() {
		s.settle(w)
		return nil
	}
	return w
}

func (w *Work) isEmpty() bool {
	return len(w.Free)+len(w.Leave)+len(w.Try) == 0 && !w.Renew && !w.Look
}

// collect adds the requests of a lock to the work. Those at the front of the queue are tried. Those
// behind them that wait are queued in the store without being tried, and woken like any other.
func (s *session) collect(name string, t turn) {
	front := 0
	if t > toQueue { // otherwise none is tried: a long queue must not cost that with each that joins it
		front = s.front(name)
	}
	for i, l := range s.queues[name] {
		if i < front {
			s.next.Try = append(s.next.Try, &Try{Req: &l.req, Queue: l.wait, of: l, byTimer: t == toPoll})
		} else if l.wait && !l.queued && s.b.cfg.Caps.Push {
			s.next.Try = append(s.next.Try, &Try{Req: &l.req, Queue: true, Behind: true, of: l})
		}
	}
	s.next.locks = append(s.next.locks, name)
}

// settle processes the answers to the work.
func (s *session) settle(w *Work) {
	if w.Renew {
		s.deadline = time.Now().Add(s.ttl)
	}
	for _, t := range w.refused {
		s.drop(t.of, s.b.store.Unavailable(opAcquire, false, w.reason))
	}
	for _, t := range w.Try {
		s.settleTry(t)
	}
	for _, name := range w.locks { // this session, or another client, has those, or there are others before them
		for _, l := range slices.Clone(s.queues[name]) {
			if !l.waits {
				s.refuse(l)
			}
		}
	}
	s.settleMarked(w.Marked)
	for _, f := range w.done {
		f()
	}
}

// settleTry processes the answer to one try, unless that is a refusal.
func (s *session) settleTry(t *Try) {
	l := t.of
	switch {
	case t.Granted:
		s.hold(l, t)
	case t.Foreign:
		s.drop(l, backend.ErrLost)
	case t.Queue && !l.queued && s.b.cfg.Caps.Push:
		l.queued = true
		if !t.Behind { // the lock may have been freed before it was queued
			s.isDue(l.req.Name, toTry)
		}
	}
}

// hold makes a lease held.
func (s *session) hold(l *lease, t *Try) {
	without(s.queues, l)
	s.held[l.req.Name] = append(s.held[l.req.Name], l)
	l.queued, s.moved = false, time.Now()
	l.grant = &backend.Grant{Token: t.Token, Since: t.Since, Waited: l.waits, ByTimer: l.waits && t.byTimer && s.b.cfg.Caps.Push}
	for _, c := range l.callers {
		c.answer <- answer{grant: *l.grant}
	}
	l.callers = nil
}

// refuse answers the callers that do not wait. The lease is gone if there are no others.
func (s *session) refuse(l *lease) {
	l.waits = l.wait
	l.callers = slices.DeleteFunc(l.callers, func(c *caller) bool {
		c.waits.Store(c.wait)
		if !c.wait {
			c.answer <- answer{err: errRefused, stays: l.wait}
		}
		return !c.wait
	})
	if !l.wait {
		s.drop(l, errRefused)
	}
}

// drop takes a lease out of the queue, for good. err is why.
func (s *session) drop(l *lease, err error) {
	for _, c := range l.callers {
		c.answer <- answer{err: err}
	}
	name := l.req.Name
	first := s.queues[name][0] == l
	delete(s.leases, l.key())
	without(s.queues, l)
	switch {
	case l.queued: // the store wakes the next
		s.next.Leave = append(s.next.Leave, l.key())
	case first && len(s.queues[name]) > 0:
		s.isDue(name, toTry)
	}
}

// free releases a lease that is held.
func (s *session) free(l *lease) {
	delete(s.leases, l.key())
	without(s.held, l)
	s.next.Free = append(s.next.Free, &l.req)
	if queue := s.queues[l.req.Name]; len(queue) > 0 && !queue[0].queued { // the store does not wake it
		s.isDue(l.req.Name, toTry)
	}
}

// without removes a lease from the list of its lock.
func without(lists map[string][]*lease, l *lease) {
	name := l.req.Name
	lists[name] = slices.DeleteFunc(lists[name], func(x *lease) bool { return x == l })
	if len(lists[name]) == 0 {
		delete(lists, name)
	}
}

// settleMarked releases the leases that were marked.
func (s *session) settleMarked(all []Told) {
	for _, m := range all {
		l, ok := s.leases[m.Key]
		if !ok || l.grant == nil {
			continue
		}
		s.free(l)
		x := backend.Loss{Session: s.id, Lease: m.ID, Cause: backend.CauseBroken, Reason: m.Reason}
		s.losses.Add(x, s.ttl)
		if s.lost != nil {
			s.lost(x)
		}
	}
}
