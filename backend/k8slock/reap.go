package k8slock

import (
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// lookAgain has reap check what ends next.
func (b *Backend) lookAgain() { signal(b.recheck) }

// reap ends sessions that were not renewed for their TTL, as far as this process has seen. Only its
// own clock counts, and only from when it saw the newest renewal. The API server refuses if there
// was a newer one.
func (b *Backend) reap() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(b.endOver())
		select {
		case <-timer.C:
		case <-b.recheck:
		case <-b.base.Done():
			return
		}
	}
}

// endOver ends sessions and foreign holders that have expired, deletes idle locks, and returns the
// time until the next of these is due.
func (b *Backend) endOver() time.Duration {
	d := b.expired()
	for _, s := range d.over {
		b.background(func() { b.buryIfThere(s) })
	}
	b.background(func() {
		for _, s := range d.unused { // one after the other: there is no hurry
			b.buryIfThere(s)
		}
	})
	for _, lock := range d.locks {
		b.background(func() { b.tidy(lock, 0) })
	}
	return max(d.next, 10*time.Millisecond)
}

// expiries are what endOver has to end.
type expiries struct {
	over   []*seen       // sessions, marked as burying
	unused []*seen       // idle locks, marked as burying
	locks  []string      // with a foreign holder that has ended, and waiters
	next   time.Duration // until the next one is due
}

// expired returns what has ended as far as this process has seen.
func (b *Backend) expired() expiries {
	const longest, again, most = 10 * time.Minute, time.Second, 100 // objects at a time
	m := &b.cache
	d := expiries{next: longest}
	now := b.rest.clock.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	for at, s := range m.objects {
		switch {
		case s.session != nil:
			left := s.session.TTL + margin(s.session.TTL) - time.Since(s.at)
			if left <= 0 {
				if !s.burying {
					d.over = append(d.over, s)
				}
				left = again
			}
			d.next = min(d.next, left)
		case s.record != nil && s.record.foreign && len(m.waiters[at]) > 0:
			left := s.foreignTTL() - time.Since(s.since)
			if left <= 0 {
				d.locks = append(d.locks, s.lock)
				left = again
			}
			d.next = min(d.next, left)
		case s.record != nil && s.record.idle():
			left := b.idle - now.Sub(s.object.written())
			if left <= 0 {
				if !s.burying {
					d.unused = append(d.unused, s)
				}
				left = longest
			}
			d.next = min(d.next, left+again)
		}
	}
	if len(d.unused) > most {
		d.unused, d.next = d.unused[:most], min(d.next, again)
	}
	for _, s := range slices.Concat(d.over, d.unused) {
		s.burying = true
	}
	return d
}

// buryIfThere buries an object, if it is still the newest known version when it is its turn.
func (b *Backend) buryIfThere(s *seen) {
	free, err := b.slot(b.base, nil)
	defer free()
	m := &b.cache
	if err == nil && m.known(s.object.Metadata.Name) == s {
		b.bury(s)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.burying = false
}

// bury deletes a session, which ends it, or a lock that is idle, if it is still as it was seen. Tokens grow
// nevertheless: see record.nextToken.
func (b *Backend) bury(s *seen) {
	ctx, cancel := backend.WithTimeout(b.base, attempt)
	defer cancel()
	at := s.object.Metadata.Name
	err := b.rest.remove(ctx, at, s.object.Metadata.UID, s.object.Metadata.ResourceVersion)
	switch {
	case err == nil, isStatus(err, http.StatusNotFound):
		b.absent(at, s.object.version()+1)
		if s.session != nil {
			b.gone(s.session.ID)
		}
	case isStatus(err, http.StatusConflict) && s.session != nil: // it was renewed; the watch may be late to report it
		if o, err := b.rest.get(ctx, at); err == nil {
			b.learn(o)
		}
	}
}

// gone records that a session no longer exists: its leases belong to no client from now on.
func (b *Backend) gone(id backend.SessionID) {
	b.mu.Lock()
	if b.ended.Has(id) {
		b.mu.Unlock()
		return
	}
	b.ended.Add(id)
	s := b.sessions[id]
	delete(b.sessions, id)
	b.mu.Unlock()
	m := &b.cache
	m.mu.Lock()
	m.forget(sessionName(id))
	locks := make(map[string]time.Duration) // by name: when to tidy it
	for at, seen := range m.objects {
		if seen.record == nil {
			continue
		}
		theirs, first := false, backend.LeaseID("")
		for _, e := range seen.record.Queue {
			switch {
			case e.Session == id:
				theirs = true
			case e.Token == 0 && first == "":
				first = e.Lease
			}
		}
		if theirs {
			locks[seen.lock] = m.turn(at, first)
		}
	}
	m.mu.Unlock()
	if s != nil {
		b.disown(s)
	}
	for name, wait := range locks {
		b.background(func() { b.tidy(name, wait) })
	}
}

// later returns when to do a task that another process is to do first.
func later() time.Duration {
	const least = 300 * time.Millisecond
	return least + rand.N(3*least)
}

// tidy removes dead entries from a lock, after a while, if they are still there.
func (b *Backend) tidy(lock string, wait time.Duration) {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-b.base.Done():
		return
	}
	if wait > 0 && !b.untidy(lock) {
		return
	}
	ctx, cancel := backend.WithTimeout(b.base, attempt)
	defer cancel()
	if err := b.do(ctx, lock, &change{apply: func(*record) bool { return false }}); err != nil && ctx.Err() == nil {
		b.cfg.Logger.WarnContext(ctx, "taking dead leases off a lock failed", slog.String("lock", lock), slog.Any("error", err))
		b.background(func() { b.tidy(lock, later()) })
	}
}

// untidy reports whether the lock has leases of sessions that have ended or are not known here, or
// a waiter that could have it.
func (b *Backend) untidy(lock string) bool {
	m := &b.cache
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.objects[objectName(lock)]
	if s == nil || s.record == nil {
		return false
	}
	return s.stalled || m.strangers(s) || slices.ContainsFunc(s.record.Queue, func(e entry) bool { return b.ended.Has(e.Session) })
}
