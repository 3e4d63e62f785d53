package k8slock

import (
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// cache has a copy of the objects in the namespace, from the watch and from what was read and
// written. For each object only the newest version counts, whichever way it came.
type cache struct {
	mu      sync.Mutex
	objects map[string]*seen
	waiters map[string]map[*acquisition]struct{} // by the name of the lock's object
	held    map[string]map[backend.LeaseID]*session
	// sessions are those whose objects are known.
	sessions map[backend.SessionID]struct{}
}

// seen is the newest known version of an object.
type seen struct {
	object  *object
	at      time.Time // when this version was first seen, by the local clock
	session *sessionState
	lock    string
	record  *record   // of a lock; nil: it cannot be read. It is not changed.
	stalled bool      // a waiter of the record could have the lock
	since   time.Time // when the holder that client-go sees was first seen as it is
	burying bool      // it is about to be deleted: not to be deleted a second time
}

func (m *cache) init() {
	m.objects = make(map[string]*seen)
	m.waiters = make(map[string]map[*acquisition]struct{})
	m.held = make(map[string]map[backend.LeaseID]*session)
	m.sessions = make(map[backend.SessionID]struct{})
}

// forget removes an object. m.mu is held.
func (m *cache) forget(at string) {
	if s := m.objects[at]; s != nil && s.session != nil {
		delete(m.sessions, s.session.ID)
	}
	delete(m.objects, at)
}

// known returns the newest version that was seen, or nil. Its object and what was read from it are not changed.
func (m *cache) known(at string) *seen {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[at]
}

// newer returns the version that the watch has delivered in the meantime, or nil if that is no newer than the
// given one.
func (m *cache) newer(at string, than *object) *object {
	if now := m.known(at); now != nil && now.object.version() > than.version() {
		return now.object
	}
	return nil
}

// sameHolder reports whether client-go would consider the two unchanged.
func sameHolder(a, b *spec) bool {
	same := func(x, y *microTime) bool { return x == y || x != nil && y != nil && x.Equal(y.Time) }
	return a.HolderIdentity == b.HolderIdentity && a.LeaseTransitions == b.LeaseTransitions &&
		a.LeaseDurationSeconds == b.LeaseDurationSeconds && same(a.RenewTime, b.RenewTime) && same(a.AcquireTime, b.AcquireTime)
}

// foreignOver reports whether client-go's holder of the lock has not been heard of for as long as
// its lease lasts, by the clock of this process alone.
func (m *cache) foreignOver(o *object) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.objects[o.Metadata.Name]
	return s != nil && sameHolder(&s.object.Spec, &o.Spec) && time.Since(s.since) > s.foreignTTL()
}

// foreignTTL returns how long client-go's holder is respected, and a margin.
func (s *seen) foreignTTL() time.Duration {
	d := time.Duration(s.object.Spec.LeaseDurationSeconds) * time.Second
	return d + margin(d)
}

// margin allows for clocks that run at different rates.
func margin(ttl time.Duration) time.Duration { return ttl/64 + 50*time.Millisecond }

// learn records an object, tells the waiters what it means for them, and reports the leases that
// were lost by it.
func (b *Backend) learn(o *object) { b.learnBy(o, false) }

// learnBy is learn for an object that a timer read, if byTimer is set. It reports to the waiters only
// what the cache has, because a grant is compared with the cache.
func (b *Backend) learnBy(o *object, byTimer bool) {
	m := &b.cache
	at := o.Metadata.Name
	before := m.known(at)
	if before != nil && before.object.version() >= o.version() {
		return
	}
	s := read(o) // takes long for a long queue: renewals must not wait for m.mu meanwhile
	var losses []func()
	m.mu.Lock()
	old := m.objects[at]
	if old != nil && old.object.version() >= o.version() || old == nil && before != nil { // it was deleted in the meantime
		m.mu.Unlock()
		return
	}
	if s.session == nil {
		m.forget(at)
	}
	m.objects[at] = s
	s.at = time.Now()
	s.since = s.at
	if old != nil && sameHolder(&old.object.Spec, &o.Spec) {
		s.since = old.since
	}
	schedule := false
	switch {
	case s.session != nil:
		m.sessions[s.session.ID] = struct{}{}
		schedule = true
	case s.record != nil:
		losses = m.tell(at, s.record, byTimer)
		schedule = s.record.foreign
	}
	wait, due := m.due(at, s)
	m.mu.Unlock()
	for _, f := range losses {
		f()
	}
	if schedule {
		b.lookAgain()
	}
	if due {
		b.background(func() { b.tidy(s.lock, wait) })
	}
}

// read parses an object: a session, a lock, or neither.
func read(o *object) *seen {
	s := &seen{object: o}
	text := []byte(o.Metadata.Annotations[stateKey])
	switch o.Metadata.Labels[kindLabel] {
	case kindSession:
		var st sessionState
		if json.Unmarshal(text, &st) == nil && st.ID != "" && sessionName(st.ID) == o.Metadata.Name {
			s.session = &st
		}
	case kindLock:
		var st state
		err := json.Unmarshal(text, &st) // a caller that requests the lock gets it
		if objectName(st.Name) != o.Metadata.Name {
			break
		}
		s.lock = st.Name
		if err == nil {
			s.record = st.of(o)
			s.stalled = s.record.admits() > 0
		}
	}
	return s
}

// due reports whether a waiter here has to write the lock for it to make progress, and when. A task
// that one process does for all falls to the process of the first waiter; the others do it in case
// that one does not. m.mu is held.
func (m *cache) due(at string, s *seen) (time.Duration, bool) {
	if s == nil || s.record == nil || len(m.waiters[at]) == 0 {
		return 0, false
	}
	if m.strangers(s) {
		return 0, true
	}
	if !s.stalled {
		return 0, false
	}
	return m.turn(at, s.record.first()), true
}

// turn returns when this process is to write a lock: now if the waiter that is next waits here, and
// otherwise after the process of that one, in case it does not. m.mu is held.
func (m *cache) turn(at string, next backend.LeaseID) time.Duration {
	for w := range m.waiters[at] {
		if w.req.Lease == next {
			return 0
		}
	}
	return later()
}

// strangers reports whether the queue of a lock has sessions that are not known here. m.mu is held.
func (m *cache) strangers(s *seen) bool {
	return slices.ContainsFunc(s.record.Queue, func(e entry) bool {
		_, known := m.sessions[e.Session]
		return !known
	})
}

// tell tells the waiters here for the lock, and returns the functions to call for the sessions that
// held it and no longer do. m.mu is held.
func (m *cache) tell(at string, r *record, byTimer bool) []func() {
	var losses []func()
	if len(m.waiters[at]) == 0 && len(m.held[at]) == 0 {
		return nil
	}
	queue := make(map[backend.LeaseID]*entry, len(r.Queue))
	for i := range r.Queue {
		queue[r.Queue[i].Lease] = &r.Queue[i]
	}
	for w := range m.waiters[at] {
		w.see(queue[w.req.Lease], byTimer)
	}
	for id, s := range m.held[at] {
		if e := queue[id]; e == nil || e.Token == 0 {
			m.unhold(at, id)
			cause, reason := backend.CauseGone, ""
			if r.Broken != nil && slices.Contains(r.Broken.Leases, id) {
				cause, reason = backend.CauseBroken, r.Broken.Reason
			}
			losses = append(losses, func() { s.lose(backend.Loss{Session: s.id, Lease: id, Cause: cause, Reason: reason}) })
		}
	}
	return losses
}

// hold records that a lease is held here, which the newest known version has to confirm. It returns
// false if the lease was lost already.
func (m *cache) hold(at string, id backend.LeaseID, s *session, e entry) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.objects[at]
	if now == nil || now.record == nil {
		return false
	}
	if known := now.record.entry(id); known == nil || known.Token != e.Token {
		return false
	}
	if m.held[at] == nil {
		m.held[at] = make(map[backend.LeaseID]*session)
	}
	m.held[at][id] = s
	return true
}

// unhold removes the record of hold. m.mu is held.
func (m *cache) unhold(at string, id backend.LeaseID) {
	delete(m.held[at], id)
	if len(m.held[at]) == 0 {
		delete(m.held, at)
	}
}

// letGo forgets a lease that is about to be released, so that it does not count as a loss.
func (m *cache) letGo(at string, id backend.LeaseID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unhold(at, id)
}

// absent records that an object does not exist, if what is known of it is no newer than the
// version.
func (b *Backend) absent(at string, version uint64) {
	m := &b.cache
	m.mu.Lock()
	s := m.objects[at]
	if s == nil || s.object.version() > version {
		m.mu.Unlock()
		return
	}
	m.forget(at)
	var losses []func()
	if s.record != nil {
		losses = m.tell(at, &record{}, false)
	}
	m.mu.Unlock()
	for _, f := range losses {
		f()
	}
	if s.session != nil {
		b.gone(s.session.ID)
	}
}
