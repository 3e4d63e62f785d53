package k8slock

import (
	"context"
	"net/http"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// opening is what is known of the attempts to open a session.
type opening struct {
	calls    int  // of OpenSession in progress
	done     bool // one has succeeded
	unsure   int  // requests that may have made the object, although no call has succeeded
	settling bool // settleSession runs
}

// unsureTime is for how long a session is remembered whose object may have been made, while the API
// server does not answer. Nothing can be held under that session.
const unsureTime = time.Minute

// unsure records that a request may have made the session's object.
func (b *Backend) unsure(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.opening.unsure++
}

// tried records that a call of OpenSession has ended. It forgets a session that no call has opened
// and whose object does not exist: a client that is refused tries a new ID each time. A session
// whose object exists is forgotten when the object ends: see gone.
func (b *Backend) tried(s *session, done bool) {
	exists := b.mirror.known(sessionName(s.id)) != nil
	b.mu.Lock()
	defer b.mu.Unlock()
	o := &s.opening
	o.calls--
	o.done = o.done || done
	switch {
	case o.done || o.calls > 0 || exists || b.sessions[s.id] != s:
	case o.unsure == 0:
		b.forget(s)
	case !o.settling:
		o.settling = true
		b.work.Go(func() { b.settleSession(s) })
	}
}

// settleSession finds out whether the object of a session exists that no call has opened, and
// forgets the session if not. Until then EndSession and Close delete the object, if there is one.
// An object that is made even later holds nothing, and ends when its TTL has passed.
func (b *Backend) settleSession(s *session) {
	end := time.Now().Add(unsureTime)
	b.keepTrying(func() bool {
		b.mu.Lock()
		before := s.opening.unsure
		b.mu.Unlock()
		exists, err := b.hasObject(s)
		b.mu.Lock()
		defer b.mu.Unlock()
		o := &s.opening
		switch {
		case b.sessions[s.id] != s, exists, o.done, o.calls > 0: // tried starts it again after these calls
		case time.Now().Before(end) && (err != nil || o.unsure != before):
			return false
		default:
			b.forget(s)
		}
		o.settling = false
		return true
	})
}

// forget removes a session that was never opened. Backend.mu is held.
func (b *Backend) forget(s *session) {
	delete(b.sessions, s.id)
	s.die(backend.ErrSessionLost)
}

// hasObject asks the API server whether the session's object exists. If it does not, hasObject does
// not record that the session has ended, unlike lives: its creation may be repeated.
func (b *Backend) hasObject(s *session) (bool, error) {
	free, err := b.slot(b.base, nil)
	defer free()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(b.base, attempt)
	defer cancel()
	o, err := b.rest.get(ctx, sessionName(s.id))
	switch {
	case isStatus(err, http.StatusNotFound):
		return false, nil
	case err != nil:
		return false, err
	}
	b.learn(o)
	return true, nil
}
