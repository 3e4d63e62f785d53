package sqlitelock

import (
	"database/sql"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/waiters"
)

// remembered is how long what ended, or was abandoned, is kept from coming back: longer than a
// late request can be in transit.
const remembered = 10 * time.Minute

// session is a row of the table of sessions: the liveness of a client.
type session struct {
	id   backend.SessionID
	ttl  time.Duration
	ends instant
	addr string // of the backend value whose listener opened or confirmed it last; empty: none
}

// session returns a live session, or nil.
func (t *txn) session(id backend.SessionID) *session {
	if x, ok := t.sessions[id]; ok {
		return x
	}
	x := &session{id: id}
	if !t.one(`SELECT ttl, ends, addr FROM sessions WHERE id = ?`, []any{string(id)}, &x.ttl, &x.ends, &x.addr) {
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
	if req.Lost != nil {
		x.addr = t.b.addr
	}
	t.extend(x)
	return nil
}

// extend lets the session live for its TTL from now.
func (t *txn) extend(x *session) {
	x.ends = t.now.add(x.ttl)
	t.ends(x.ends)
	t.exec(`INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?)`, string(x.id), int64(x.ttl), int64(x.ends), x.addr)
	t.lives(x)
}

// lives notes when the session ends, after the commit.
func (t *txn) lives(x *session) {
	t.then(func() { t.b.calls.Opened(x.id, x.ends) })
}

// renewSession extends the session and returns the losses to report to it, or false when there is
// no such session.
func (t *txn) renewSession(id backend.SessionID) ([]backend.Loss, bool) {
	x := t.session(id)
	if x == nil {
		return nil, false
	}
	t.extend(x)
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

// endSession ends everything that lives with the session. It notifies the listener, unless that is of this
// backend value and it made the request.
func (t *txn) endSession(x *session, asked bool, event backend.EventKind, cause backend.Cause) {
	t.flush() // the following query reads the table
	keys := t.keys(`SELECT name, lease FROM leases WHERE session = ? AND session <> '' AND (held = 0 OR timed = 0)`, string(x.id))
	delete(t.sessions, x.id)
	t.exec(`DELETE FROM sessions WHERE id = ?`, string(x.id))
	t.bury(string(x.id), "", string(cause))
	for _, k := range keys {
		if l := t.lock(k.Name).Find(k.ID); l != nil {
			lockstate.End(t, l, event, backend.ErrSessionLost, "")
		}
	}
	t.tell(x, backend.Loss{Session: x.id, Cause: cause}, asked)
	t.exec(`DELETE FROM losses WHERE session = ?`, string(x.id))
	t.then(func() { t.b.calls.Forget(x.id) })
}

// keys reads names and IDs of leases.
func (t *txn) keys(query string, args ...any) []lockstate.Key {
	var keys []lockstate.Key
	t.each(query, args, func(scan func(...any)) {
		var k lockstate.Key
		scan(&k.Name, &k.ID)
		keys = append(keys, k)
	})
	return keys
}

// tell reports a loss to the listener, here or in another process.
func (t *txn) tell(x *session, loss backend.Loss, asked bool) {
	if !asked {
		t.then(func() { t.b.calls.Report(loss) })
	}
	t.notify(x.addr, waiters.SessionLine(x.id))
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
	for _, id := range t.texts(`SELECT id FROM sessions WHERE ends <= ?`, now) {
		if x := t.session(backend.SessionID(id)); x != nil {
			t.endSession(x, false, backend.EventExpired, backend.CauseExpired)
		}
	}
	for _, k := range t.keys(`SELECT name, lease FROM leases WHERE ends > 0 AND ends <= ?`, now) {
		if l := t.lock(k.Name).Find(k.ID); l != nil {
			lockstate.Lose(t, l, backend.EventExpired, backend.CauseExpired, "")
		}
	}
	for table, column := range map[string]string{"tombs": "until", "losses": "until", "watchers": "ends", "events": "until"} {
		t.exec("DELETE FROM "+table+" WHERE "+column+" <= ?", now)
	}
	t.settle()
	t.flush() // findDue reads the tables
	t.findDue()
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
