package liveness

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/clock"
)

// Due is what is to be renewed.
type Due struct {
	Sessions []*Session
	Renewals []*Renewal
}

// Parts divides what is due into requests: one for each session, the first of which takes timed leases
// along, and then further ones of timed leases alone. No request has more than most timed leases; 0:
// there is no bound.
func (d Due) Parts(most int) []Due {
	size := len(d.Renewals)
	if most > 0 {
		size = min(size, most)
	}
	left := d.Renewals
	var parts []Due
	for i := range d.Sessions {
		n := 0
		if i == 0 {
			n = size
		}
		parts = append(parts, Due{Sessions: d.Sessions[i : i+1], Renewals: left[:n]})
		left = left[n:]
	}
	for part := range slices.Chunk(left, max(1, size)) {
		parts = append(parts, Due{Renewals: part})
	}
	return parts
}

// Request is the request that renews it: one part of what is due.
func (d Due) Request() backend.RenewRequest {
	var req backend.RenewRequest
	for _, s := range d.Sessions {
		req.Session = s.ID
	}
	req.Leases = make([]backend.TimedRenewal, len(d.Renewals))
	for i, f := range d.Renewals {
		req.Leases[i] = backend.TimedRenewal{Name: f.Lease.Name, Lease: f.Lease.ID, TTL: f.TTL}
	}
	return req
}

// Patience returns how long to wait for the answer: a fifth of the TTL, and at most half of the time
// left, so that a request without an answer leaves time for others.
func (d Due) Patience(now clock.Instant) time.Duration {
	const most, least = time.Minute, 10 * time.Millisecond
	wait := most
	for _, s := range d.Sessions {
		wait = min(wait, s.TTL/5, time.Duration(s.deadline-now)/2)
	}
	for _, f := range d.Renewals {
		wait = min(wait, f.TTL/5, time.Duration(f.Lease.deadline-now)/2)
	}
	return max(wait, least)
}

// Answered applies the answer to the request, which left at sent.
func (m *Machine) Answered(d Due, sent, now clock.Instant, res backend.RenewResult, err error) {
	for _, s := range d.Sessions {
		s.renewing = false
		m.SessionConfirmed(s, sent, now, res, err)
	}
	for i, f := range d.Renewals {
		var r backend.Renewal
		if err == nil {
			r = res.Leases[i]
		}
		f.Lease.renewing = false
		m.AnsweredOne(f, sent, now, r, err)
	}
}

// Renewal is a renewal of a timed lease that is in progress. Renewals may ask for different TTLs. They
// may reach the backend in another order than they were sent in, or after the client has stopped
// waiting for their answer. Then a renewal with a shorter TTL silently shortens the lease of one with
// a longer TTL.
type Renewal struct {
	Lease *Lease
	TTL   time.Duration
	// least is the TTL that the lease has when this renewal is answered, in whatever order they
	// arrive: the shortest of this TTL and those of all renewals that may reach the backend after
	// it.
	least time.Duration
}

// StartRenewal records that a renewal is about to be sent. From now on the lease may have no more time
// than that renewal asks for, whether it is answered or not.
func (m *Machine) StartRenewal(l *Lease, now clock.Instant, ttl time.Duration) *Renewal {
	l.deadline = min(l.deadline, now+clock.Instant(ttl-clock.Drift(ttl)))
	l.Life = max(l.Life, ttl)
	l.renewAt = min(l.renewAt, nextRenewal(now, ttl, m.phase))
	f := &Renewal{Lease: l, TTL: ttl, least: ttl}
	if l.unknown > 0 {
		f.least = min(f.least, l.unknown)
	}
	for _, other := range l.renewals {
		f.least = min(f.least, other.TTL)
		other.least = min(other.least, ttl)
	}
	l.renewals = append(l.renewals, f)
	m.reschedule(l)
	return f
}

// GiveUp records that the renewal has no answer: it may still arrive.
func (m *Machine) GiveUp(r *Renewal) { r.end(true) }

func (r *Renewal) end(unknown bool) {
	l := r.Lease
	l.renewals = slices.DeleteFunc(l.renewals, func(other *Renewal) bool { return other == r })
	if unknown && (l.unknown == 0 || r.TTL < l.unknown) {
		l.unknown = r.TTL
	}
}

// AnsweredOne applies the answer to one renewal. err is that of the whole request.
func (m *Machine) AnsweredOne(f *Renewal, sent, now clock.Instant, r backend.Renewal, err error) {
	l := f.Lease
	if err == nil {
		err = r.Err
	}
	f.end(err != nil)
	if !l.held {
		return
	}
	left := time.Duration(l.deadline - now)
	m.observer.Renewed(1, left, time.Duration(now-sent), err)
	switch {
	case errors.Is(err, backend.ErrLost):
		cause, reason := backend.CauseGone, ""
		if told, ok := errors.AsType[*backend.LossError](err); ok {
			cause, reason = told.Cause, told.Reason
		}
		m.Lose(l, cause, reason, nil)
		return
	case err != nil:
		l.failures++
		l.lastErr = err
		l.renewAt = now + retryIn(l.TTL, l.deadline-now, l.failures)
		if l.failures == 1 {
			m.observer.AtRisk(1, left, err)
		}
	case now >= l.deadline:
		m.Lose(l, backend.CauseDeadline, "", l.lastErr)
		return
	default:
		m.extend(l, sent, min(r.Left, f.least))
	}
	m.reschedule(l)
}
