package sqllease

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// sorted sorts everything into the order in which rows are locked. The order is the same for all
// transactions, so they do not wait for each other in a circle.
func (s *Scope) sorted() {
	slices.Sort(s.Names)
	s.Names = slices.Compact(s.Names)
	slices.Sort(s.Sessions)
	s.Sessions = slices.Compact(s.Sessions)
	slices.Sort(s.Kill)
	s.Kill = slices.Compact(s.Kill)
}

// add adds the content of another scope.
func (s *Scope) add(o *Scope) {
	s.Names = append(s.Names, o.Names...)
	s.Sessions = append(s.Sessions, o.Sessions...)
	s.Leases = append(s.Leases, o.Leases...)
	s.Back = append(s.Back, o.Back...)
	s.Kill = append(s.Kill, o.Kill...)
}

var errNoMeta = errors.New("the row of the table meta does not exist")

// read takes over a view, read with or without the rows of the locks locked.
func (t *txn) read(v *View, s *Scope) error {
	if v.Now.IsZero() { // it is read together with the row of meta
		return errNoMeta
	}
	t.now, t.watched, t.early = v.Now, v.Watched, v.Early
	for name, place := range s.Front {
		t.lock(name).Own.front = place
	}
	for _, name := range s.Names {
		// The floor was committed when the rows of the locks were locked, so a row that was
		// created again issues no number that was issued before.
		l := t.lock(name)
		l.Own.mine = v.Taken[name]
		l.Own.last = max(l.Own.mine-Reserve, v.Floor)
	}
	for i := range v.Sessions {
		t.readSession(&v.Sessions[i])
	}
	for i := range v.Leases {
		l := t.leaseOf(&v.Leases[i])
		l.Lock.Add(l)
	}
	for _, r := range v.Rest {
		l := t.lock(r.Name)
		l.Rest, l.RestLimit = r.Count, r.Limit
	}
	for _, k := range v.Buried {
		t.buried[k] = struct{}{}
	}
	for _, name := range v.Tombs {
		t.tombed[name] = true
	}
	return nil
}

// cut returns the end of something that lives for at most ttl from now, and whether its stored
// end was later than that. If so, the server's clock was set back since the end was written.
// Without the cut, a lease or session of a dead client would last until the clock catches up.
func (t *txn) cut(ends time.Time, ttl time.Duration) (time.Time, bool) {
	if ends.Sub(t.now) <= ttl+ClockSlack {
		return ends, false
	}
	return t.now.Add(ttl), true
}

func (t *txn) readSession(r *SessionRow) {
	s := session{id: r.ID, ttl: r.TTL, ends: r.Ends, cause: r.Cause, addr: r.Addr, known: true}
	if s.cause == "" {
		s.ends, s.cut = t.cut(s.ends, s.ttl)
	}
	*t.session(r.ID) = s
}

// again locks and rereads what seems to have expired: it may have been renewed.
func (t *txn) again(ctx context.Context, tx Tx, kill []backend.SessionID) error {
	sessions, leases := t.doubtful(kill)
	if len(sessions)+len(leases) == 0 {
		return nil
	}
	v, err := tx.Again(ctx, sessions, leases)
	if err != nil {
		return err
	}
	for i := range v.Sessions {
		t.readSession(&v.Sessions[i])
	}
	for i := range v.Leases {
		r := &v.Leases[i]
		if l := t.lock(r.Name).Find(r.Lease); l != nil {
			l.Own.ends = r.Ends
		}
	}
	return nil
}

// doubtful returns what seems to have expired: sessions, and timed leases.
func (t *txn) doubtful(kill []backend.SessionID) ([]backend.SessionID, []Key) {
	sessions := slices.Clone(kill)
	for id, s := range t.sessions {
		if s.overdue(t.now) {
			sessions = append(sessions, id)
		}
	}
	var leases []Key
	for _, lk := range t.locks {
		for _, l := range lk.All() {
			if l.State == lockstate.Held && l.Timed && expired(l, t.now) {
				leases = append(leases, l.Key())
			}
		}
	}
	slices.Sort(sessions)
	slices.SortFunc(leases, Key.Compare)
	return slices.Compact(sessions), leases
}

// changes returns what the transaction has to write.
func (t *txn) changes() *Changes {
	c := &t.out
	c.Now, c.Buried = t.now, slices.SortedFunc(maps.Keys(t.tombs), Key.Compare)
	slices.SortFunc(c.Gone, Key.Compare)
	for _, id := range slices.Sorted(maps.Keys(t.sessions)) {
		switch s := t.sessions[id]; {
		case s.dirty:
			c.Killed = append(c.Killed, SessionRow{ID: id, Cause: s.cause})
		case s.cut:
			c.CutSessions = append(c.CutSessions, id)
		}
	}
	for _, name := range t.names() {
		lk := t.locks[name]
		for _, l := range lk.All() {
			switch {
			case !l.Own.dirty && l.Own.thin:
				c.inflated = append(c.inflated, rowOf(l))
			case !l.Own.dirty && l.Own.cut:
				c.CutLeases = append(c.CutLeases, l.Key())
			case l.Own.dirty:
				c.Leases = append(c.Leases, rowOf(l))
			}
		}
		if lk.Own.last > lk.Own.mine {
			c.Lasts = append(c.Lasts, Last{name, lk.Own.last})
		}
		if lk.Free() {
			c.Free = append(c.Free, name)
		}
	}
	for _, addr := range slices.Sorted(maps.Keys(t.notifications)) {
		for _, p := range t.notifications[addr].encode() {
			c.Notifications = append(c.Notifications, Notification{addr, p})
		}
	}
	return c
}
