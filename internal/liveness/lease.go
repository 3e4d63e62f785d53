package liveness

import (
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/clock"
)

// Lease is a lease of the client: one that is held, or one that is being acquired.
type Lease struct {
	Holder  Holder
	Name    string
	ID      backend.LeaseID
	Session *Session      // of the lease, or of its place in the queue; may be nil
	TTL     time.Duration // what renewals of this lease alone ask for; 0: there are none
	Life    time.Duration // the longest TTL that was requested; 0: it has no TTL of its own
	Timed   bool          // it is a timed lease
	Late    bool          // an attempt to acquire it was cut short, and may still arrive

	held     bool // granted, and not ended
	ended    bool // lost or released
	renewing bool // Step asked for a renewal, which is not answered yet
	due      entry
	deadline clock.Instant
	until    clock.Instant // it ends then in any case; 0: there is no such time
	renewAt  clock.Instant
	renewals []*Renewal    // its renewals that are in progress
	unknown  time.Duration // the shortest TTL of a renewal with unknown outcome; 0: none
	failures int           // renewals that failed since the last success
	lastErr  error         // of the last of them
}

// Expect registers a lease that is being acquired, so that a loss that is reported before its grant
// is not missed. It reports false if the session of the lease has ended.
func (m *Machine) Expect(l *Lease) bool {
	if l.Session == nil {
		return true
	}
	if l.Session.ended {
		return false
	}
	l.Session.leases[l.ID] = l
	return true
}

// Granted records the time that the backend granted: left, of a timed lease, counted from the
// departure of the request at sent; and most, counted from now, if it is above 0. It reports whether
// the lease has time left. The lease is not held yet.
func (m *Machine) Granted(l *Lease, sent, now clock.Instant, left, most time.Duration) bool {
	if l.Timed {
		m.extend(l, sent, left)
	}
	if most > 0 {
		l.until = now + clock.Instant(most)
	}
	return now < l.Deadline()
}

// Hold records that the lease is held.
func (m *Machine) Hold(l *Lease) {
	l.held = true
	l.due.Owner = l
	if l.Timed {
		m.timed[l] = struct{}{}
		if l.Session != nil { // the place in the queue belonged to the session; the lease does not
			l.Session.forget(l)
		}
	} else {
		l.Session.held++
	}
	m.reschedule(l)
}

// Held reports whether the lease is held. Check it first.
func (l *Lease) Held() bool { return l.held }

// AtRisk reports whether the last renewal failed.
func (l *Lease) AtRisk() bool { return l.failures > 0 || !l.Timed && l.Session.failures > 0 }

// Deadline returns when the lease ends on this side if nothing is renewed.
func (l *Lease) Deadline() clock.Instant {
	d := l.deadline
	if !l.Timed {
		d = l.Session.deadline
	}
	if l.until > 0 {
		d = min(d, l.until)
	}
	return d
}

// Watch has Moved called also when the session of the lease is renewed.
func (m *Machine) Watch(l *Lease) {
	if !l.Timed && l.held {
		l.Session.watched[l] = struct{}{}
	}
}

// Release records that the holder gave the lease up.
func (m *Machine) Release(l *Lease) {
	l.ended = true
	m.Drop(l)
}

// Drop removes the lease from every count and schedule.
func (m *Machine) Drop(l *Lease) {
	m.due.Remove(&l.due)
	delete(m.timed, l)
	if s := l.Session; s != nil {
		s.forget(l)
		delete(s.watched, l)
		if l.held && !l.Timed {
			s.held--
		}
	}
	l.held = false
}

// Lose ends the lease, unless it has ended.
func (m *Machine) Lose(l *Lease, cause backend.Cause, reason string, err error) {
	if l.ended {
		return
	}
	l.ended = true
	l.Holder.Lost(cause, reason, err)
	m.Drop(l)
}

// Check ends the lease if its deadline has passed. It does not wait for a Step, which may be late,
// and which is late after a suspension.
func (m *Machine) Check(l *Lease, now clock.Instant) {
	if !l.held {
		return
	}
	if s := l.Session; !l.Timed && now >= s.deadline {
		m.Expire(s)
	}
	if l.held && now >= l.Deadline() {
		m.expire(l, now)
	}
}

// expire ends a lease whose deadline has passed.
func (m *Machine) expire(l *Lease, now clock.Instant) {
	switch {
	case l.until > 0 && now >= l.until:
		m.Lose(l, backend.CauseAtMost, "", nil)
		l.Holder.Abandon()
	case l.TTL == 0:
		m.Lose(l, backend.CauseEnded, "", nil)
	default:
		m.Lose(l, backend.CauseDeadline, "", l.lastErr)
	}
}

// wake does what is due at now.
func (l *Lease) wake(m *Machine, now clock.Instant, d *Due) {
	if !l.held {
		return
	}
	if now >= l.Deadline() {
		m.Check(l, now)
		return
	}
	if l.Timed && l.TTL > 0 && !l.renewing && now >= l.renewAt {
		l.renewing = true
		d.Renewals = append(d.Renewals, m.StartRenewal(l, now, l.TTL))
	}
	m.reschedule(l)
}

// next returns when the lease needs a step of its own, if at all.
func (l *Lease) next() (clock.Instant, bool) {
	if !l.Timed {
		return l.until, l.until > 0
	}
	at := l.Deadline()
	if l.TTL > 0 && !l.renewing {
		at = min(at, l.renewAt)
	}
	return at, true
}

func (m *Machine) reschedule(l *Lease) {
	if at, ok := l.next(); ok && l.held {
		m.put(&l.due, at)
	}
}

// extend records that the backend granted a timed lease another left, counted from sent. That may
// shorten the lease.
func (m *Machine) extend(l *Lease, sent clock.Instant, left time.Duration) {
	l.deadline = sent + clock.Instant(left-clock.Drift(left))
	l.renewAt = nextRenewal(sent, left, m.phase)
	l.failures, l.lastErr = 0, nil
	l.Holder.Moved()
}
