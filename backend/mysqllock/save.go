package mysqllock

import (
	"database/sql"
	"time"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// Rows are written by their keys: a join could lock others on the way. The statements are sent together.
const (
	killSession = `INSERT INTO @sessions (id, ttl, ends, cause) VALUES (?, 0, ?, ?)
		ON DUPLICATE KEY UPDATE cause = VALUES(cause), ends = LEAST(ends, VALUES(ends))`
	// A statement has its clock from before it waits for a row: so the row is locked first.
	cutSession  = `UPDATE @sessions SET ends = LEAST(ends, $NOW + ttl) WHERE id = ? AND cause = ''`
	cutLease    = `UPDATE @leases SET ends = LEAST(ends, $NOW + ttl) WHERE name = ? AND lease = ? AND held AND timed`
	deleteLease = `DELETE FROM @leases WHERE name = ? AND lease = ?`
	saveLeases  = `INSERT INTO @leases (name, lease, session, held, place, mode, permits, cap, owner, note, timed, ttl, token, asked,
		since, ends, waited) VALUES ? ON DUPLICATE KEY UPDATE session = VALUES(session), held = VALUES(held), place = VALUES(place),
		token = VALUES(token), since = VALUES(since), ends = VALUES(ends)`
	newLease     = `(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	updateLock   = `UPDATE @locks SET last = ?, used = ? WHERE name = ?`
	freeLock     = `UPDATE @locks SET fat = 0, ` + noThin + ` WHERE name = ?`
	buryLock     = `UPDATE @locks SET buried = GREATEST(buried, ?) WHERE name = ?`
	insertTomb   = `INSERT INTO @tombs (name, lease, expires) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE expires = VALUES(expires)`
	insertLosses = `INSERT INTO @losses (session, lease, cause, reason, expires) VALUES (?, ?, ?, ?, ?)
		ON DUPLICATE KEY UPDATE cause = VALUES(cause), reason = VALUES(reason), expires = VALUES(expires)`
)

// save writes what has changed.
func (s store) save(q *batch, c *sqllease.Changes) {
	now := c.Now.UnixMicro()
	for _, x := range c.Killed {
		q.exec(s.b.sql(killSession), string(x.ID), now, x.Cause)
	}
	for _, id := range c.CutSessions {
		q.query(skip, s.b.sql(lockSession), string(id))
		q.exec(s.b.sql(cutSession), string(id))
	}
	for _, k := range c.CutLeases {
		q.query(skip, s.b.sql(lockLease), k.Name, string(k.ID))
		q.exec(s.b.sql(cutLease), k.Name, string(k.ID))
	}
	for _, k := range c.Gone {
		q.exec(s.b.sql(deleteLease), k.Name, string(k.ID))
	}
	if len(c.Leases) > 0 {
		var args []any
		for i := range c.Leases {
			args = append(args, row(&c.Leases[i])...)
		}
		q.exec(s.b.sql(saveLeases), list(newLease, len(c.Leases), args))
	}
	for _, x := range c.Lasts {
		q.exec(s.b.sql(updateLock), x.Last, now, x.Name)
	}
	for _, name := range c.Free {
		q.exec(s.b.sql(freeLock), name)
	}
	until := c.Now.Add(sqllease.Remembered).UnixMicro()
	for _, k := range c.Buried {
		q.exec(s.b.sql(buryLock), until, k.Name)
		q.exec(s.b.sql(insertTomb), k.Name, string(k.ID), until)
	}
	for _, x := range c.Losses {
		q.exec(s.b.sql(insertLosses), string(x.Session), string(x.Lease), string(x.Cause), x.Reason, x.Until.UnixMicro())
	}
}

func skip(*sql.Rows) error { return nil }

func row(l *sqllease.LeaseRow) []any {
	return []any{
		l.Name, string(l.Lease), string(l.Session), l.Held, l.Place, int64(l.Claim.Mode), l.Claim.Permits, l.Claim.Limit, l.Owner, l.Note,
		l.Timed, l.TTL.Microseconds(), l.Token, stamp(l.Asked), stamp(l.Since), end(l.Ends), l.Waited,
	}
}

// stamp returns the stored form of a time; 0 for no time.
func stamp(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return at.UnixMicro()
}

func end(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return at.UnixMicro()
}
