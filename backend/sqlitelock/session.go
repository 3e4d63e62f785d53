package sqlitelock

import (
	"database/sql"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// remembered is how long what ended, or was abandoned, is kept from coming back: longer than a
// late request can be in transit.
const remembered = 10 * time.Minute

// session is a row of the table of sessions: the liveness of a client.
type session struct {
	id   backend.SessionID
	ttl  time.Duration
	ends instant

	saved, dirty, gone bool
}

// listener receives the losses of a session, in this process.
type listener struct {
	tell func(backend.Loss)
	// ends is when the session ends if it is not renewed through this backend value.
	ends instant
	told map[backend.LeaseID]struct{} // so that a second read reports nothing twice
}

// session returns a live session, or nil.
func (t *txn) session(id backend.SessionID) *session {
	if x, ok := t.sessions[id]; ok {
		if x.gone {
			return nil
		}
		return x
	}
	x := &session{id: id, saved: true}
	if !t.one(`SELECT ttl, ends FROM sessions WHERE id = ?`, []any{string(id)}, &x.ttl, &x.ends) {
		return nil
	}
	t.sessions[id] = x
	return x
}

// openSession creates or confirms the session. It never revives one.
func (t *txn) openSession(req *backend.SessionRequest) error {
	if _, dead := t.tomb(string(req.ID), ""); dead {
		return backend.ErrSessionLost
	}
	x := t.session(req.ID)
	if x == nil {
		x = &session{id: req.ID}
		t.sessions[req.ID] = x
	}
	x.ttl = req.TTL
	t.extend(x)
	if req.Lost == nil {
		t.after = append(t.after, func() { t.b.renewed(x.id, x.ends) })
		return nil
	}
	if addr := t.b.addr(); addr != "" {
		t.exec(`INSERT INTO listeners VALUES (?, ?) ON CONFLICT DO NOTHING`, string(x.id), addr)
	}
	l := &listener{tell: req.Lost, ends: x.ends, told: make(map[backend.LeaseID]struct{})}
	t.after = append(t.after, func() { t.b.listen(x.id, l) })
	return nil
}

// extend lets the session live for its TTL from now.
func (t *txn) extend(x *session) {
	x.ends = t.now.add(x.ttl)
	t.ends(x.ends)
	if !x.dirty {
		x.dirty = true
		t.moved = append(t.moved, x)
	}
}

// renewSession extends the session and returns the losses to report to it, or false when there is
// no such session.
func (t *txn) renewSession(id backend.SessionID) ([]backend.Loss, bool) {
	x := t.session(id)
	if x == nil {
		return nil, false
	}
	t.extend(x)
	t.after = append(t.after, func() { t.b.renewed(id, x.ends) })
	return t.losses(id), true
}

// losses returns the losses of the session that renewals report.
func (t *txn) losses(id backend.SessionID) []backend.Loss {
	var losses []backend.Loss
	t.each(`SELECT lease, cause, reason FROM losses WHERE session = ? AND until > ?`, []any{string(id), int64(t.now)}, func(scan func(...any)) {
		l := backend.Loss{Session: id}
		scan(&l.Lease, &l.Cause, &l.Reason)
		losses = append(losses, l)
	})
	return losses
}

// renewLease extends, or shortens, a timed lease that is held.
func (t *txn) renewLease(r backend.TimedRenewal) backend.Renewal {
	l := t.lock(r.Name).Holders.Find(r.Lease)
	if l == nil || !l.Timed {
		return backend.Renewal{Err: backend.ErrLost}
	}
	l.Own.ends = t.now.add(r.TTL)
	l.TTL = r.TTL
	t.ends(l.Own.ends)
	t.touch(l)
	t.dirty, t.durable = true, true
	return backend.Renewal{Token: l.Token, Left: r.TTL}
}

// endSession ends everything that lives with the session. It notifies the listeners, except this
// backend value when it made the request.
func (t *txn) endSession(x *session, asked bool, event backend.EventKind, cause backend.Cause) {
	t.flush() // the following query reads the table
	keys := t.keys(`SELECT name, lease FROM leases WHERE session = ? AND session <> '' AND (held = 0 OR timed = 0)`, string(x.id))
	x.gone = true
	if !x.dirty {
		x.dirty = true
		t.moved = append(t.moved, x)
	}
	t.bury(string(x.id), "", string(cause))
	for _, k := range keys {
		if l := t.lock(k.name).Find(k.id); l != nil {
			t.end(l, backend.ErrSessionLost, event, "")
		}
	}
	t.tell(x.id, backend.Loss{Session: x.id, Cause: cause}, asked)
	t.exec(`DELETE FROM listeners WHERE session = ?`, string(x.id))
	t.exec(`DELETE FROM losses WHERE session = ?`, string(x.id))
	t.deliveries = append(t.deliveries, delivery{give: func(error) { t.b.unlisten(x.id) }})
}

// keys reads names and IDs of leases.
func (t *txn) keys(query string, args ...any) []leaseKey {
	var keys []leaseKey
	t.each(query, args, func(scan func(...any)) {
		var k leaseKey
		scan(&k.name, &k.id)
		keys = append(keys, k)
	})
	return keys
}

// lose ends a lease that its holder did not release, and notifies its session: immediately, and
// with its renewals for one TTL. So a client that lost the reply to one renewal learns it from
// the next one, or has lost the session by then.
func (t *txn) lose(l *lease, event backend.EventKind, cause backend.Cause, reason string) {
	if l.Timed {
		t.durable = true
	}
	t.end(l, backend.ErrLost, event, reason)
	if l.Own.session == "" {
		return
	}
	x := t.session(l.Own.session)
	if x == nil {
		return
	}
	until := t.now.add(x.ttl)
	t.ends(until)
	t.exec(`INSERT OR REPLACE INTO losses VALUES (?, ?, ?, ?, ?)`, string(x.id), string(l.ID), string(cause), reason, int64(until))
	t.tell(x.id, backend.Loss{Session: x.id, Lease: l.ID, Cause: cause, Reason: reason}, false)
}

// tell reports a loss to the listeners, here and in other processes.
func (t *txn) tell(id backend.SessionID, loss backend.Loss, asked bool) {
	if !asked {
		t.deliveries = append(t.deliveries, delivery{give: func(error) { t.b.tellLoss(id, loss) }})
	}
	for _, addr := range t.texts(`SELECT addr FROM listeners WHERE session = ?`, string(id)) {
		if addr != t.b.addr() {
			t.write(addr, letter{sessions: map[backend.SessionID]struct{}{id: {}}})
		}
	}
}

// bury keeps a session (no name), or a lease, from coming back.
func (t *txn) bury(id, name, cause string) {
	until := t.now.add(remembered)
	t.ends(until)
	t.exec(`INSERT OR REPLACE INTO tombs VALUES (?, ?, ?, ?)`, id, name, cause, int64(until))
}

// tomb reports whether the session or lease may not come back, and why.
func (t *txn) tomb(id, name string) (string, bool) {
	var cause string
	dead := t.one(`SELECT cause FROM tombs WHERE id = ? AND name = ? AND until > ?`, []any{id, name, int64(t.now)}, &cause)
	return cause, dead
}

// expire ends what has expired. It hands over only at the end: a waiter whose session expires at
// the same moment must not be granted.
func (t *txn) expire() {
	now := int64(t.now)
	t.stale = true
	for _, id := range t.texts(`SELECT id FROM sessions WHERE ends <= ?`, now) {
		if x := t.session(backend.SessionID(id)); x != nil {
			t.endSession(x, false, backend.EventExpired, backend.CauseExpired)
		}
	}
	for _, k := range t.keys(`SELECT name, lease FROM leases WHERE ends > 0 AND ends <= ?`, now) {
		if l := t.lock(k.name).Find(k.id); l != nil {
			t.lose(l, backend.EventExpired, backend.CauseExpired, "")
		}
	}
	for table, column := range map[string]string{"tombs": "until", "losses": "until", "watchers": "ends", "events": "until"} {
		if t.one("SELECT 1 FROM "+table+" WHERE "+column+" <= ? LIMIT 1", []any{now}, new(int)) {
			t.exec("DELETE FROM "+table+" WHERE "+column+" <= ?", now)
		}
	}
	t.settle()
}

// findDue finds when the next thing ends.
func (t *txn) findDue() {
	due := sql.NullInt64{}
	t.one(`SELECT min(at) FROM (
		SELECT min(ends) AS at FROM sessions UNION ALL
		SELECT min(ends) FROM leases WHERE ends > 0 UNION ALL
		SELECT min(until) FROM tombs UNION ALL
		SELECT min(until) FROM losses UNION ALL
		SELECT min(ends) FROM watchers UNION ALL
		SELECT min(until) FROM events)`, nil, &due)
	next := int64(never)
	if due.Valid {
		next = due.Int64
	}
	if next != t.meta.due {
		t.meta.due, t.dirty = next, true
	}
}
