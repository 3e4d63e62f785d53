package zklock

import (
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// hear reports the losses that are written to the session's notices.
func (s *session) hear() {
	var inbox seqlock.Inbox
	for {
		data, _, events, err := s.link.conn.GetW(s.b.noticePath(s.ID))
		if err == nil {
			err = inbox.Read(s.tellBroken(data), s.tellMissing)
		}
		if errors.Is(err, zk.ErrNoNode) && s.Life.Err() == nil && !isClosed(s.link.over) {
			s.Expire(backend.CauseGone) // it was deleted by hand: the session would hear of no break
			return
		}
		if err != nil {
			if !retry.Pause(s.Life, s.b.cfg.Tick/2) {
				return
			}
			continue
		}
		select {
		case <-events:
		case <-s.Life.Done():
			return
		}
	}
}

// tellBroken reports the leases that the notices name, and returns the notices.
func (s *session) tellBroken(data []byte) []seqlock.Notice {
	notices := seqlock.Notices(data)
	for _, n := range notices {
		s.tell(backend.Loss{Lease: n.Lease, Cause: backend.CauseBroken, Reason: n.Reason})
	}
	return notices
}

// A renewal is followed by at most someChecks checks of held leases, but not if there are only
// fewLeases.
const someChecks, fewLeases = 16, 4

// beat sends a request that shows that the session lives. If leases are held, it checks the next of
// them.
func (s *session) beat() error {
	k, path := s.nextCheck()
	if path != "" {
		return s.check(k, path)
	}
	_, _, err := s.link.conn.Exists(s.b.sessionPath(s.ID))
	return err
}

// checkSome checks some of many held leases. For a few the beats are enough.
func (s *session) checkSome() {
	known := s.leases.Count()
	if known <= fewLeases {
		return
	}
	for range min(known, someChecks) {
		if k, path := s.nextCheck(); path == "" || s.check(k, path) != nil {
			return
		}
	}
}

// nextCheck returns the held lease that is to be checked next, with the path of its entry: empty
// if none is held. All held leases are checked in turn.
func (s *session) nextCheck() (seqlock.Key, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 2 {
		for len(s.checks) > 0 {
			k := s.checks[0]
			s.checks = s.checks[1:]
			if path := s.leases.EntryOf(k); path != "" {
				return k, path
			}
		}
		s.checks = s.leases.Held()
	}
	return seqlock.Key{}, ""
}

// check reports a held lease whose entry was deleted by hand. Nothing reports that, and another
// client may hold the lock by then. If there is a notice of a break, that is the cause.
func (s *session) check(k seqlock.Key, path string) error {
	there, _, err := s.link.conn.Exists(path)
	if err != nil || there {
		return err
	}
	data, _, err := s.link.conn.Get(s.b.noticePath(s.ID))
	if err != nil {
		return err // another time; hear handles a node that is gone
	}
	s.tellBroken(data)
	if s.leases.EntryOf(k) == path { // otherwise it was released in the meantime
		s.tell(backend.Loss{Lease: k.ID, Cause: backend.CauseGone})
	}
	return nil
}

// tellMissing reports the leases whose entries no longer exist, although they were not released
// here: their notices made room for newer ones.
func (s *session) tellMissing() error {
	for _, k := range s.leases.Held() {
		path := s.leases.EntryOf(k)
		if path == "" {
			continue // it was released in the meantime
		}
		there, _, err := s.link.conn.Exists(path)
		if err != nil {
			return err
		}
		if !there && s.leases.EntryOf(k) == path {
			s.tell(backend.Loss{Lease: k.ID, Cause: backend.CauseGone})
		}
	}
	return nil
}

// tell reports a lost lease, once. If a create of it is under way, that deletes its entry. A break
// names the lease and not the entry, so there may be another one, which is deleted, too.
func (s *session) tell(loss backend.Loss) {
	s.leases.Report(loss, func(l *lease) {
		if path := l.Entry; loss.Cause == backend.CauseBroken && (path != "" || l.Unsure) {
			s.b.sessions.Go(func() { s.clear(l.Key, path) })
		}
	})
}
