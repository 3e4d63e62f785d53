package zklock

import (
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// hear reports the losses that are written to the session's notices.
func (s *session) hear() {
	var inbox seqlock.Inbox
	for {
		data, _, events, err := s.link.conn.GetW(s.b.noticePath(s.id))
		if err == nil {
			if inbox.Read(s.tellBroken(data)) {
				inbox.Found()
				if err = s.tellMissing(); err != nil {
					inbox.Again()
				}
			}
		}
		if errors.Is(err, zk.ErrNoNode) && !isClosed(s.over) && !isClosed(s.link.over) {
			s.expire(backend.CauseGone) // it was deleted by hand: the session would hear of no break
			return
		}
		if err != nil {
			if isClosed(s.over) || isClosed(s.link.over) || errors.Is(err, zk.ErrSessionExpired) {
				return // keep handles the end of the session
			}
			select {
			case <-time.After(s.b.cfg.Tick / 2):
				continue
			case <-s.over:
				return
			}
		}
		select {
		case <-events:
		case <-s.over:
			return
		}
	}
}

// tellBroken reports the leases that the notices name, and returns the notices.
func (s *session) tellBroken(data []byte) []seqlock.Notice {
	notices := seqlock.Notices(data)
	for _, n := range notices {
		s.tell(backend.Loss{Session: s.id, Lease: n.Lease, Cause: backend.CauseBroken, Reason: n.Reason})
	}
	return notices
}

// A renewal is followed by at most someChecks checks of held leases, but not if there are only
// fewLeases.
const someChecks, fewLeases = 16, 4

// beat sends a request that shows that the session lives. If leases are held, it checks the next of
// them.
func (s *session) beat() error {
	k, o, path := s.nextCheck()
	if o != nil {
		return s.check(k, o, path)
	}
	_, _, err := s.link.conn.Exists(s.b.sessionPath(s.id))
	return err
}

// checkSome checks some of many held leases. For a few the beats are enough.
func (s *session) checkSome() {
	s.mu.Lock()
	known := len(s.leases)
	s.mu.Unlock()
	if known <= fewLeases {
		return
	}
	for range min(known, someChecks) {
		if k, o, path := s.nextCheck(); o == nil || s.check(k, o, path) != nil {
			return
		}
	}
}

// nextCheck returns the held lease that is to be checked next, with the path of its entry, or nil
// if none is held. All held leases are checked in turn.
func (s *session) nextCheck() (leaseKey, *own, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for round := range 2 {
		for len(s.checks) > 0 {
			k := s.checks[0]
			s.checks = s.checks[1:]
			if o, ok := s.leases[k]; ok && o.isHeld() {
				return k, o, o.path
			}
		}
		if round > 0 {
			break
		}
		for k, o := range s.leases {
			if o.isHeld() {
				s.checks = append(s.checks, k)
			}
		}
	}
	return leaseKey{}, nil, ""
}

// isHeld reports whether the lease was granted and neither released nor lost. The session's mu is
// held.
func (o *own) isHeld() bool { return o.held && o.path != "" && !isClosed(o.gone) }

// check reports a held lease whose entry was deleted by hand. Nothing reports that, and another
// client may hold the lock by then. If there is a notice of a break, that is the cause.
func (s *session) check(k leaseKey, o *own, path string) error {
	there, _, err := s.link.conn.Exists(path)
	if err != nil || there {
		return err
	}
	data, _, err := s.link.conn.Get(s.b.noticePath(s.id))
	if err != nil {
		return err // another time; hear handles a node that is gone
	}
	s.tellBroken(data)
	s.mu.Lock()
	gone := s.leases[k] == o && o.isHeld() && o.path == path // otherwise it was released in the meantime
	s.mu.Unlock()
	if gone {
		s.tell(backend.Loss{Session: s.id, Lease: k.id, Cause: backend.CauseGone})
	}
	return nil
}

// tellMissing reports the leases whose entries no longer exist, although they were not released
// here: their notices made room for newer ones.
func (s *session) tellMissing() error {
	type held struct {
		id  backend.LeaseID
		own *own
	}
	paths := make(map[string]held)
	s.mu.Lock()
	for k, o := range s.leases {
		if o.path != "" && !isClosed(o.gone) {
			paths[o.path] = held{k.id, o}
		}
	}
	s.mu.Unlock()
	for path, h := range paths {
		there, _, err := s.link.conn.Exists(path)
		if err != nil {
			return err
		}
		if !there && !isClosed(h.own.gone) { // otherwise it was released in the meantime
			s.tell(backend.Loss{Session: s.id, Lease: h.id, Cause: backend.CauseGone})
		}
	}
	return nil
}

// tell reports a lost lease, once. Lost is final: the lease is never granted again, and an entry of
// it that was made since is deleted.
func (s *session) tell(loss backend.Loss) {
	s.mu.Lock()
	known := s.told[loss.Lease]
	if !known {
		s.told[loss.Lease] = true
		s.losses = append(s.losses, loss)
		for k, o := range s.leases {
			if k.id == loss.Lease {
				s.lose(k, o, loss.Cause)
			}
		}
	}
	s.mu.Unlock()
	if s.lost != nil && !known {
		s.lost(loss)
	}
}

// lose forgets a lease whose loss is reported, and stops the callers that wait for it. A break
// names the lease and not the entry, so there may be another one. The session's mu is held.
func (s *session) lose(k leaseKey, o *own, cause backend.Cause) {
	if path := o.path; cause == backend.CauseBroken && (path != "" || o.unsure) {
		s.b.work.Go(func() { s.clear(k, path) })
	}
	s.unplace(o)
	o.path = ""
	if !isClosed(o.gone) {
		close(o.gone)
	}
	delete(s.leases, k)
}
