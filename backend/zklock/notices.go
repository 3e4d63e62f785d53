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
			err = inbox.Read(s.tellBroken(data), func() error { return s.check(s.leases.Held()) })
		}
		if errors.Is(err, zk.ErrNoNode) && s.Life.Err() == nil && s.link.life.Err() == nil {
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

// checksPerBeat is how many held leases are checked with each sign of life.
const checksPerBeat = 4

// beat sends requests that show that the session lives. It checks the next of the leases that are held.
func (s *session) beat() error {
	if _, _, err := s.link.conn.Exists(s.b.sessionPath(s.ID)); err != nil {
		return err
	}
	return s.check(s.nextChecks())
}

// nextChecks returns the held leases that are to be checked next. All are checked in turn.
func (s *session) nextChecks() []seqlock.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.checks) == 0 {
		s.checks = s.leases.Held()
	}
	n := min(len(s.checks), checksPerBeat)
	next := s.checks[:n]
	s.checks = s.checks[n:]
	return next
}

// check reports those of the leases whose entries were deleted, although they were not released here: by hand,
// of which nothing reports, and another client may hold the lock by then; or by a break whose notice made room
// for newer ones. If there is a notice, that is the cause.
func (s *session) check(keys []seqlock.Key) error {
	for _, k := range keys {
		path := s.leases.EntryOf(k)
		if path == "" {
			continue // it was released in the meantime
		}
		there, _, err := s.link.conn.Exists(path)
		if err != nil {
			return err
		}
		if there {
			continue
		}
		data, _, err := s.link.conn.Get(s.b.noticePath(s.ID))
		if err != nil {
			return err // another time; hear handles a node that is gone
		}
		s.tellBroken(data)
		if s.leases.EntryOf(k) == path {
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
