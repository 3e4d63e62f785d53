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
	last    int64 // the last number given
	mine    int64 // the last one that this transaction may give without writing the row
	holders group // in the order of their grants
	line    group // first come first

	// Those in line behind the place front were not read, but for some: so many, and the
	// limit of those that are shared.
	front     int64
	rest      int
	restLimit int
}

// group is leases in order, and what each of them takes.
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

// all is the leases that are out, and then those in line.
func (l *lock) all() []*lease { return slices.Concat(l.holders.leases, l.line.leases) }

// next is the next number of the lock.
func (l *lock) next() int64 {
	l.last++
	return l.last
}

// admits reports whether the claim, which stands last in line, may be out now: it
// fits and nobody is before it, or it joins by re-entry, which overtakes.
func (l *lock) admits(c backend.Claim) bool {
	return l.rest == 0 && len(l.line.leases) == 1 && c.Fits(l.holders.claims) || l.joins(c) != nil
}

// limit is the limit in force, if there is one.
func (l *lock) limit() (int, bool) {
	limit, ok := backend.LimitInForce(l.holders.claims, l.line.claims)
	if !ok && l.rest > 0 && l.restLimit >= 0 {
		return l.restLimit, true
	}
	return limit, ok
}

// waiting is how many stand in line.
func (l *lock) waiting() int { return len(l.line.leases) + l.rest }

// joins is the lease that c may join, if any.
func (l *lock) joins(c backend.Claim) *lease {
	for i, h := range l.holders.claims {
		if c.Joins(h) {
			return l.holders.leases[i]
		}
	}
	return nil
}

// state is where a lease stands.
type state uint8

const (
	waiting state = iota // in line
	held                 // out
	over                 // gone, for good
)

// lease is a row of that table: an acquisition that is in line or out.
type lease struct {
	lock  *lock
	id    backend.LeaseID
	claim backend.Claim
	note  string
	timed bool
	ttl   time.Duration // of a timed lease
	// session is the one that the place in line belongs to, and the lease when it is
	// not timed. A timed lease that is out has it only to know whom to tell of its
	// loss. Nil: none.
	session *session
	addr    string // of the backend value that waits for it

	state  state
	place  int64 // in line or among the holders; a greater one is later
	asked  time.Time
	waited bool // it stood in line
	token  int64
	since  time.Time // of the grant
	ends   time.Time // of a timed lease that is out
	joined bool      // by re-entry

	saved bool // there is a row
	dirty bool // the row is not as it should be
	cut   bool // the row says that it ends later, see txn.cut
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

// fencing is the token as it is told.
func (l *lease) fencing() fence.Token { return fence.Token(l.token) } //nolint:gosec // it counts up from 0

// over reports whether the lease is over at that time.
func (l *lease) over(now time.Time) bool {
	if l.state == held && l.timed {
		return !l.ends.After(now)
	}
	return !l.session.alive(now)
}

// left is how long the lease lives if nobody renews it.
func (l *lease) left(now time.Time) time.Duration {
	if l.state == held && l.timed {
		return l.ends.Sub(now)
	}
	return l.session.ends.Sub(now)
}

// bound is how long the lock stays as it is, as far as this lease goes: it is not over
// before, neither now nor after a grant that takes place in the next moment.
func (l *lease) bound(now time.Time) time.Duration {
	if l.state == waiting && l.timed {
		return min(l.left(now), l.ttl)
	}
	return l.left(now)
}

// session is a row of that table: the liveness of a client.
type session struct {
	id    backend.SessionID
	ttl   time.Duration
	ends  time.Time
	cause string // why it ended; empty: it was not ended
	addr  string // the channel of who hears of its losses
	known bool   // there is a row
	dirty bool   // cause has to be written
	cut   bool   // the row says that it ends later, see txn.cut
}

// alive reports whether the session lives at that time.
func (s *session) alive(now time.Time) bool {
	return s != nil && s.known && s.cause == "" && s.ends.After(now)
}

// leaseOf is a lease as it was read. Its session is that of the transaction.
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

// row is the lease as it is written.
func (l *lease) row() LeaseRow {
	return LeaseRow{
		Name: l.lock.name, Lease: l.id, Session: l.sessionID(), Addr: l.addr, Held: l.state == held, Place: l.place, Claim: l.claim,
		Note: l.note, Timed: l.timed, TTL: l.ttl, Token: l.token, Asked: l.asked, Since: l.since, Ends: l.ends, Waited: l.waited, Joined: l.joined,
	}
}
