// Package liveness decides when the sessions and the leases of a client are renewed, and when they
// have ended on this side.
//
// It is a state machine. It has no clock and no goroutine, and sends nothing: every method is told
// what time it is, what was sent and what was answered. Step returns what is to be sent now, and when
// the next step is due. What ends is reported to the Holder of each lease and to the Observer.
//
// A deadline counts from before the request left whose answer granted the time, and is earlier than
// the end on the backend by clock.Drift. So what has not ended here has not ended there.
//
// Nothing in this package is safe for concurrent use. A client guards all of it with one mutex, and
// the callbacks run with that mutex held: they must not call the Machine.
package liveness

import (
	"math/rand/v2"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/clock"
	"github.com/holdfast-io/holdfast/internal/schedule"
)

// Holder is what a lease is reported to.
type Holder interface {
	// Lost: the lease has ended without its release. It was held, or it was being acquired and can
	// no longer be granted. err is the last error of a renewal, if that was the cause. Called at
	// most once.
	Lost(cause backend.Cause, reason string, err error)
	// Moved: the lease has another deadline.
	Moved()
	// Abandon: the backend may still have the lease, which is to be released there.
	Abandon()
}

// Observer is what a Machine reports about all its leases.
type Observer interface {
	// Wake: the next Step is due earlier than the last one said.
	Wake()
	// Ended: a session has ended.
	Ended(*Session)
	// Renewed: a renewal of so many leases was answered, or failed. margin is the time that was
	// left then.
	Renewed(leases int, margin, took time.Duration, err error)
	// AtRisk: the first renewal of so many leases failed. left is the time until they are lost.
	AtRisk(leases int, left time.Duration, err error)
}

// Machine has the sessions and the leases of one client.
type Machine struct {
	observer Observer
	phase    time.Duration // random, so that clients do not renew in step
	due      schedule.Schedule[clock.Instant, owner]
	planned  clock.Instant // when the next Step is due, as far as the caller knows
	timed    map[*Lease]struct{}
	sessions int // that are open
}

// New returns a machine without sessions and leases, of a client whose leases have that TTL.
func New(observer Observer, ttl time.Duration) *Machine {
	return &Machine{observer: observer, phase: rand.N(ttl), timed: make(map[*Lease]struct{})}
}

// Step ends what was not renewed in time. It returns what is to be renewed now, and the time until the
// next step, which is at most longest while there are sessions or leases.
func (m *Machine) Step(now clock.Instant, longest time.Duration) (Due, time.Duration) {
	var d Due
	for m.due.Len() > 0 && m.due.First().At() <= now {
		e := m.due.First()
		m.due.Remove(e)
		e.Owner.wake(m, now, &d)
	}
	idle := time.Hour
	if m.due.Len() > 0 {
		idle = min(time.Duration(m.due.First().At()-now), longest)
	}
	m.planned = now + clock.Instant(idle)
	return d, idle
}

// Each calls f with each lease that is held, which f may end: the timed ones, and those of the session, which may be nil.
func (m *Machine) Each(s *Session, f func(*Lease)) {
	m.Timed(f)
	if s == nil {
		return
	}
	for _, l := range s.leases {
		if l.held && !l.Timed {
			f(l)
		}
	}
}

// Timed calls f with each timed lease that is held, which f may end.
func (m *Machine) Timed(f func(*Lease)) {
	for l := range m.timed {
		f(l)
	}
}

// Held returns, for each of the locks, a lease that holds it: a timed one, or one of the session, which may be nil. A lock
// that is not held has none. Held looks at every lease.
func (m *Machine) Held(s *Session, names ...string) map[string]*Lease {
	held := make(map[string]*Lease, len(names))
	for _, name := range names {
		held[name] = nil
	}
	m.Each(s, func(l *Lease) {
		if _, asked := held[l.Name]; asked {
			held[l.Name] = l
		}
	})
	return held
}

// TimedCount returns how many timed leases are held.
func (m *Machine) TimedCount() int { return len(m.timed) }

// Report applies a loss that the backend reported: of the session, of a lease of it, or of a timed lease. s is nil if there
// is no session.
func (m *Machine) Report(s *Session, loss backend.Loss) {
	if loss.Lease == "" {
		m.EndSession(s, loss.Cause, nil)
		return
	}
	var l *Lease
	if s != nil {
		l = s.leases[loss.Lease]
	}
	if l != nil {
		again := l.held && l.Late
		m.Lose(l, loss.Cause, loss.Reason, nil)
		if again && !l.Timed {
			// The lost lease may be the grant to an attempt whose answer was lost. Then the next
			// attempt was granted again, and the session would keep that lease for ever.
			l.Holder.Abandon()
		}
	}
	for l := range m.timed { // several if the lease was acquired again by its ID
		if l.ID == loss.Lease {
			m.Lose(l, loss.Cause, loss.Reason, nil)
		}
	}
}

// nextRenewal returns when to renew what was renewed at sent: after a third of the TTL, on a grid,
// so that leases of one TTL fall due together and share one request.
func nextRenewal(sent clock.Instant, ttl, phase time.Duration) clock.Instant {
	step := clock.Instant(max(ttl/12, time.Millisecond))
	offset := clock.Instant(phase) % step
	return (sent+clock.Instant(ttl/3)-offset)/step*step + offset
}

// retryIn returns how long to wait after a failed renewal, with jitter. left is the time until the
// deadline.
func retryIn(ttl time.Duration, left clock.Instant, failures int) clock.Instant {
	d := max(0, min(ttl/60<<min(failures, 4), ttl/8, time.Duration(left)/4))
	return clock.Instant(max(d/2+rand.N(d/2+1), time.Millisecond))
}

// owner is what a schedule has an entry of: a session, or a lease.
type owner interface {
	wake(m *Machine, now clock.Instant, d *Due)
}

type entry = schedule.Entry[clock.Instant, owner]

// put adds e to the schedule, or moves it.
func (m *Machine) put(e *entry, at clock.Instant) {
	m.due.Put(e, at)
	if at < m.planned {
		m.observer.Wake()
	}
}
