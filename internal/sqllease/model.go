package sqllease

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// lock is a lock as one transaction sees it.
type lock struct {
	name    string
	last    int64 // the last number issued
	mine    int64 // the last number that this transaction may issue without writing the row
	holders group // in the order of their grants
	line    group // first come first

	// Behind the place front only some of the waiters were read. rest counts those that were not,
	// and restLimit is the limit of the shared ones among them.
	front     int64
	rest      int
	restLimit int
}

// group is an ordered list of leases, and their claims.
type group struct {
	leases []*lease
	claims []backend.Claim
}

func (g *group) add(l *lease) {
	g.leases = append(g.leases, l)
	g.claims = append(g.claims, l.claim)
}

func (g *group) remove(l *lease) {
	i := slices.Index(g.leases, l)
	g.leases = slices.Delete(g.leases, i, i+1)
	g.claims = slices.Delete(g.claims, i, i+1)
}

func (g *group) find(id backend.LeaseID) *lease {
	for _, l := range g.leases {
		if l.id == id {
			return l
		}
	}
	return nil
}

func (l *lock) find(id backend.LeaseID) *lease {
	if x := l.holders.find(id); x != nil {
		return x
	}
	return l.line.find(id)
}

// all returns the leases that are held, and then those in the queue.
func (l *lock) all() []*lease { return slices.Concat(l.holders.leases, l.line.leases) }

// next issues the next number of the lock.
func (l *lock) next() int64 {
	l.last++
	return l.last
}

// admits reports whether the claim, which is the last in the queue, may be granted now: it fits
// and is also the first, or it joins by re-entry, which overtakes.
func (l *lock) admits(c backend.Claim) bool {
	return l.rest == 0 && len(l.line.leases) == 1 && c.Fits(l.holders.claims) || l.joins(c) != nil
}

// limit returns the limit in force, if there is one.
func (l *lock) limit() (int, bool) {
	limit, ok := backend.LimitInForce(l.holders.claims, l.line.claims)
	if !ok && l.rest > 0 && l.restLimit >= 0 {
		return l.restLimit, true
	}
	return limit, ok
}

// waiting returns the length of the queue.
func (l *lock) waiting() int { return len(l.line.leases) + l.rest }

// joins returns the lease that c may join, or nil.
func (l *lock) joins(c backend.Claim) *lease {
	for i, h := range l.holders.claims {
		if c.Joins(h) {
			return l.holders.leases[i]
		}
	}
	return nil
}

// state is the state of a lease.
type state uint8

const (
	waiting state = iota // in the queue
	held                 // out
	over                 // ended, for good
)

// lease is a row of the table of leases: an acquisition that is in the queue or held.
type lease struct {
	lock  *lock
	id    backend.LeaseID
	claim backend.Claim
	note  string
	timed bool
	ttl   time.Duration // of a timed lease
	// session is the one that the place in the queue lives under, and also the lease unless it is
	// timed. A held timed lease has it only to know which client to notify of its loss. Nil:
	// none.
	session *session
	addr    string // of the backend value that waits for it

	state  state
	place  int64 // in the queue or among the holders; a greater one is later
	asked  time.Time
	waited bool // it was in the queue
	token  int64
	since  time.Time // of the grant
	ends   time.Time // of a timed lease that is held
	joined bool      // by re-entry

	saved bool // it has a row
	dirty bool // the row has to be written
	cut   bool // the row has a later end, see txn.cut
}

// compare orders keys.
func (k Key) compare(o Key) int {
	return cmp.Or(strings.Compare(k.Name, o.Name), strings.Compare(string(k.ID), string(o.ID)))
}

func (l *lease) key() Key { return Key{l.lock.name, l.id} }

func (l *lease) sessionID() backend.SessionID {
	if l.session == nil {
		return ""
	}
	return l.session.id
}

// fencing returns the token in its public type.
func (l *lease) fencing() fence.Token { return fence.Token(l.token) } //nolint:gosec // it counts up from 0

// over reports whether the lease has expired at that time.
func (l *lease) over(now time.Time) bool {
	if l.state == held && l.timed {
		return !l.ends.After(now)
	}
	return !l.session.alive(now)
}

// left returns how long the lease lives if it is not renewed.
func (l *lease) left(now time.Time) time.Duration {
	if l.state == held && l.timed {
		return l.ends.Sub(now)
	}
	return l.session.ends.Sub(now)
}

// bound returns how long this lease leaves the lock as it is: it does not end earlier, neither
// now nor after a grant in the next moment.
func (l *lease) bound(now time.Time) time.Duration {
	if l.state == waiting && l.timed {
		return min(l.left(now), l.ttl)
	}
	return l.left(now)
}

// session is a row of the table of sessions: the liveness of a client.
type session struct {
	id    backend.SessionID
	ttl   time.Duration
	ends  time.Time
	cause string // why it ended; empty: it has not ended
	addr  string // the channel that is notified of its losses
	known bool   // it has a row
	dirty bool   // cause has to be written
	cut   bool   // the row has a later end, see txn.cut
}

// alive reports whether the session lives at that time.
func (s *session) alive(now time.Time) bool {
	return s != nil && s.known && s.cause == "" && s.ends.After(now)
}

// leaseOf returns the lease of a row. Its session is that of the transaction.
func (t *txn) leaseOf(r *LeaseRow) *lease {
	l := &lease{
		lock: t.lock(r.Name), id: r.Lease, claim: r.Claim, note: r.Note, timed: r.Timed, ttl: r.TTL, addr: r.Addr, place: r.Place,
		asked: r.Asked, waited: r.Waited, token: r.Token, since: r.Since, ends: r.Ends, joined: r.Joined, saved: true,
	}
	if r.Held {
		l.state = held
		if l.timed {
			l.ends, l.cut = t.cut(l.ends, l.ttl)
		}
	}
	if r.Session != "" {
		l.session = t.session(r.Session)
	}
	return l
}

// row returns the row of the lease.
func (l *lease) row() LeaseRow {
	return LeaseRow{
		Name: l.lock.name, Lease: l.id, Session: l.sessionID(), Addr: l.addr, Held: l.state == held, Place: l.place, Claim: l.claim,
		Note: l.note, Timed: l.timed, TTL: l.ttl, Token: l.token, Asked: l.asked, Since: l.since, Ends: l.ends, Waited: l.waited, Joined: l.joined,
	}
}
