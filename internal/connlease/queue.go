package connlease

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// errRefused: the request does not wait, and the lock is not free.
var errRefused = errors.New("refused")

// maxTries is how many locks are tried together.
const maxTries = 256

// gather returns the work to be sent now, or nil.
func (s *session) gather() *Work {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.ending || s.b.life.Err() != nil || !now.Before(s.deadline) {
		s.ended = true
		return &Work{End: true, Left: endTime}
	}
	w := &Work{Left: s.deadline.Sub(now), Renew: len(s.renews) > 0, Look: s.look || !now.Before(s.nextLook()), renews: s.renews}
	s.look, s.renews = false, nil
	if w.Renew {
		w.Left = s.ttl // its holders count on the whole TTL from now on
	}
	if w.Look || w.Renew {
		s.looked = now
	}
	for _, l := range s.freed {
		w.Free = append(w.Free, &l.req)
	}
	for _, l := range s.left {
		w.Leave = append(w.Leave, Key{Name: l.req.Name, ID: l.req.Lease})
	}
	if !s.again.IsZero() && !now.Before(s.again) {
		s.again = time.Time{}
		for name, p := range s.spots {
			if len(p.queue) > 0 {
				s.due[name] = max(s.due[name], toPoll)
			}
		}
	}
	for name, due := range s.due {
		if len(w.trying) >= maxTries {
			break
		}
		delete(s.due, name)
		s.collect(w, name, due)
	}
	for _, l := range w.trying {
		w.Try = append(w.Try, &Try{Req: &l.req, First: !isClosed(l.tried), Queue: l.wait})
	}
	for _, l := range w.joining {
		w.Join = append(w.Join, &l.req)
	}
	s.schedule(now)
	if len(w.Free)+len(w.Leave)+len(w.Try)+len(w.Join) == 0 && !w.Renew && !w.Look {
		return nil
	}
	return w
}

// nextLook returns when to read the marks: not before the session's end where there are
// notifications of them. The caller holds mu.
func (s *session) nextLook() time.Time {
	if s.b.cfg.LookEvery == 0 || len(s.leases) == 0 {
		return s.deadline
	}
	return s.looked.Add(s.b.cfg.LookEvery)
}

// schedule sets when waiters try again in any case. The caller holds mu.
func (s *session) schedule(now time.Time) {
	if !s.again.IsZero() {
		return
	}
	for _, p := range s.spots {
		if len(p.queue) > 0 {
			s.again = now.Add(s.b.cfg.Pause(now.Sub(s.moved)))
			return
		}
	}
}

// collect adds the requests of a lock to the work. Those at the head of the local queue that the
// leases of this session admit are tried: the database would grant any of them the lock, because it
// is the same connection. Those behind them that wait are queued in the store without being tried,
// and woken like any other. Those that do not wait are refused: immediately where this session has
// the lock, and otherwise when it is known that those before them, or another client, have it. The
// caller holds mu.
func (s *session) collect(w *Work, name string, due turn) {
	p := s.spots[name]
	if p == nil {
		return
	}
	front, queue := 0, p.queue
	if due > toQueue { // otherwise none is tried or refused: a long queue must not cost that with each that joins it
		front, queue = backend.Admit(claims(p.out), claims(p.queue)), slices.Clone(p.queue)
	}
	for i, l := range queue {
		switch {
		case i < front:
			l.trying, l.timer = true, due == toPoll
			w.trying = append(w.trying, l)
		case l.wait && s.b.cfg.Wakes && !l.queued && !l.trying: // a refusal below makes the lock due again, perhaps in this very gather
			l.trying = true
			w.joining = append(w.joining, l)
		case l.wait || due == toQueue:
		case front == 0:
			s.drop(l, errRefused)
		default:
			l.trying = true
			w.behind = append(w.behind, l)
		}
	}
}

func claims(all []*lease) []backend.Claim {
	cs := make([]backend.Claim, 0, len(all))
	for _, l := range all {
		cs = append(cs, l.req.Claim())
	}
	return cs
}

// spot returns the session's state of a lock, and creates it if necessary. The caller holds mu.
func (s *session) spot(name string) *spot {
	p := s.spots[name]
	if p == nil {
		p = new(spot)
		s.spots[name] = p
	}
	return p
}

// remove takes a lease out of its spot, and has the new head of the queue tried: a request that
// was never tried here is not woken. The caller holds mu.
func (s *session) remove(l *lease) {
	name := l.req.Name
	p := s.spots[name]
	is := func(x *lease) bool { return x == l }
	p.out, p.queue = slices.DeleteFunc(p.out, is), slices.DeleteFunc(p.queue, is)
	if len(p.out)+len(p.queue) == 0 {
		delete(s.spots, name)
		return
	}
	if len(p.queue) > 0 && (!p.queue[0].queued || !s.b.cfg.Wakes) {
		s.due[name] = toTry
	}
}

// drop takes a lease out of the queue, for good. err is why, unless it is no longer wanted. The
// caller holds mu.
func (s *session) drop(l *lease, err error) {
	if l.gone {
		err = backend.ErrLost
	}
	s.remove(l)
	s.overWith(Key{Name: l.req.Name, ID: l.req.Lease}, l, err)
	if !l.queued {
		signal(l.freed)
		return
	}
	s.left = append(s.left, l)
	s.wake()
}

// free releases a lease that is held. The caller holds mu.
func (s *session) free(l *lease) {
	s.remove(l)
	delete(s.leases, Key{Name: l.req.Name, ID: l.req.Lease})
	l.state = over
	s.freed = append(s.freed, l)
	s.wake()
}

// settle processes the answers.
func (s *session) settle(w *Work) {
	s.mu.Lock()
	now := time.Now()
	if w.Renew {
		s.deadline = now.Add(s.ttl)
	}
	for _, l := range s.freed[:len(w.Free)] {
		signal(l.freed)
	}
	s.freed = slices.Delete(s.freed, 0, len(w.Free))
	for _, l := range s.left[:len(w.Leave)] {
		signal(l.freed)
	}
	s.left = slices.Delete(s.left, 0, len(w.Leave))
	if w.Refused != nil {
		s.refuse(slices.Concat(w.trying, w.joining), s.b.store.Unavailable(opAcquire, false, w.Refused))
		w.trying, w.joining = nil, nil
	}
	for i, l := range w.trying {
		s.answer(l, w.Try[i], now)
	}
	for _, l := range w.joining {
		l.trying, l.queued, l.waited = false, true, true
		signal(l.tried)
		if l.gone {
			s.drop(l, backend.ErrLost)
		}
	}
	s.refuseBehind(w.behind)
	losses := s.markedAre(w.Marked, now)
	for _, done := range w.renews {
		close(done)
	}
	s.mu.Unlock()
	if s.lost != nil && s.b.cfg.Caps.LossPush {
		for _, x := range losses {
			s.lost(x)
		}
	}
}

// refuse ends the requests that the database refused. The caller holds mu.
func (s *session) refuse(all []*lease, err error) {
	for _, l := range all {
		l.trying = false
		s.drop(l, err)
	}
}

// answer processes the answer to one try. The caller holds mu.
func (s *session) answer(l *lease, t *Try, now time.Time) {
	l.trying = false
	switch {
	case t.Granted:
		p := s.spot(l.req.Name)
		p.queue = slices.DeleteFunc(p.queue, func(x *lease) bool { return x == l })
		p.out = append(p.out, l)
		l.state, l.token, l.since, l.queued = out, t.Token, t.Since, false
		s.moved = now
		if l.gone {
			l.err = backend.ErrLost
		}
		close(l.done)
		signal(l.tried)
		if l.gone {
			s.free(l)
		}
		if p := s.spots[l.req.Name]; p != nil && len(p.queue) > 0 && !p.queue[0].queued {
			s.due[l.req.Name] = toTry // readers behind a reader
		}
	case t.Foreign:
		s.drop(l, backend.ErrLost)
	default:
		fresh := !l.queued && s.b.cfg.Wakes
		l.queued = l.queued || fresh && t.Queue
		if l.gone || !l.wait {
			s.drop(l, errRefused)
			return
		}
		l.waited = true
		signal(l.tried)
		if fresh { // the lock may have been freed in between, or a caller waits that came after the try
			s.due[l.req.Name] = toTry
		}
	}
}

// refuseBehind refuses the requests that do not wait and had others before them: the lock was
// tried after they arrived, for those others. A request whose turn it is now is due instead. The
// caller holds mu.
func (s *session) refuseBehind(behind []*lease) {
	for _, l := range behind {
		l.trying = false
		p := s.spots[l.req.Name]
		switch {
		case l.state == over:
		case l.gone:
			s.drop(l, backend.ErrLost)
		case len(p.out) == 0 && p.queue[0] == l:
		case l.wait:
			l.waited = true
			signal(l.tried)
			s.due[l.req.Name] = max(s.due[l.req.Name], toQueue)
		default:
			s.drop(l, errRefused)
		}
	}
}

// markedAre releases the leases that were marked. The caller holds mu.
func (s *session) markedAre(all []Told, now time.Time) []backend.Loss {
	var losses []backend.Loss
	for _, m := range all {
		l, ok := s.leases[m.Key]
		if !ok || l.state != out {
			continue
		}
		s.free(l)
		if m.Released {
			continue
		}
		x := backend.Loss{Session: s.id, Lease: m.ID, Cause: backend.CauseBroken, Reason: m.Reason}
		losses = append(losses, x)
		s.told = append(s.told, toldLoss{x, now.Add(s.ttl)})
	}
	return losses
}
