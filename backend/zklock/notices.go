package zklock

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
)

// hear reports the losses that are written to the session's notices.
func (s *session) hear() {
	// read are the leases whose notices were read. Other leases may have been reported as missing
	// while the break that took them was in progress, and so do not show that the notices before
	// theirs were read.
	read := make(map[backend.LeaseID]bool)
	missed := false // there were notices that were not read
	for {
		data, _, events, err := s.link.conn.GetW(s.b.noticePath(s.id))
		if err == nil {
			var notices []notice
			_ = json.Unmarshal(data, &notices) // data that is not ours means nothing
			missed = missed || len(notices) > 0 && notices[0].Cut && !read[notices[0].Lease]
			for _, n := range notices {
				read[n.Lease] = true
				s.tell(backend.Loss{Session: s.id, Lease: n.Lease, Cause: backend.CauseBroken, Reason: n.Reason})
			}
			if missed {
				err = s.tellMissing()
				missed = err != nil
			}
		}
		if err != nil {
			if isClosed(s.over) || isClosed(s.link.over) || errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrSessionExpired) {
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
