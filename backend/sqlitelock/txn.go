package sqlitelock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// txn is one transaction. It keeps what it reads, and writes what it changes at the end, so that
// a lease that comes and goes within it is never written.
type txn struct {
	b   *Backend
	ctx context.Context //nolint:containedctx // it ends with the transaction; statements are not interrupted

	err        error // of the store: nothing of the transaction counts
	wrote      bool
	committing bool // the commit was tried: it may have worked

	now   instant   // when all of it happens
	asked time.Time // a local time before now
	wall  time.Time // now, for people

	memory
	dirty bool // meta has to be written

	touched []*lease // to be written
	changed lockstate.Changed[struct{}, ofLease]
	events  []backend.Event
	feed    int64 // see Backend.feed

	durable       bool // the answer of the current request must survive a power failure
	deliveries    []delivery
	notifications map[string]string // for other backend values, by address
}

// meta is the row of the table meta.
type meta struct {
	boot                     string
	token, reserved, durable int64
	place, event             int64
	due, watched             int64
	seenBoot                 int64
}

// open reads what every transaction needs, and ends what has expired.
func (t *txn) open() {
	t.notifications = make(map[string]string)
	t.asked = time.Now()
	t.now, t.wall = t.b.host.now(), t.b.host.wall()
	t.recall()
	if t.err != nil {
		return
	}
	m := &t.meta
	t.b.mu.Lock()
	synced := min(t.b.synced, m.reserved)
	t.b.mu.Unlock()
	if synced > m.durable {
		m.durable, t.dirty = synced, true
	}
	if int64(t.now) >= m.due {
		t.expire()
	}
}

// memory is what a transaction knows of the file. It stays true until another connection writes to the
// file.
type memory struct {
	version  int64 // SQLite's data_version: another connection's commit changes it
	meta     meta
	locks    map[string]*lock
	sessions map[backend.SessionID]*session
}

// maxMemory bounds the locks, and the sessions, that are kept from one transaction to the next.
const maxMemory = 1 << 12

// recall takes over what the previous transaction knew, if it is still true, and reads the meta
// row otherwise. The memory comes back with the commit: see remember.
func (t *txn) recall() {
	old := t.b.known
	t.b.known = nil
	if !t.one(`PRAGMA data_version`, nil, &t.version) {
		return
	}
	if old != nil && old.version == t.version {
		t.memory = *old
		return
	}
	t.locks, t.sessions = make(map[string]*lock), make(map[backend.SessionID]*session)
	m := &t.meta
	if !t.one(`SELECT boot, token, reserved, durable, place, event, due, watched, seen_boot FROM meta`, nil,
		&m.boot, &m.token, &m.reserved, &m.durable, &m.place, &m.event, &m.due, &m.watched, &m.seenBoot) {
		t.fail(ErrCorrupt)
		return
	}
	if m.boot != t.b.host.boot {
		t.fail(fmt.Errorf("%s is in use by another boot or machine: %w", t.b.path, ErrReplaced))
	}
}

// remember keeps what is known, after the commit.
func (t *txn) remember() {
	if len(t.locks) > maxMemory || len(t.sessions) > maxMemory {
		return
	}
	known := t.memory
	t.b.known = &known
}

// run executes one request.
func (t *txn) run(r *request) {
	if t.err != nil {
		return
	}
	t.durable = false
	err := r.run(t)
	t.durable = t.durable || r.lasting && !lockstate.Refused(err)
	t.settle()
	t.deliveries = append(t.deliveries, delivery{t.durable, func() { r.Answer(err) }})
}

// then has f called after the commit.
func (t *txn) then(f func()) { t.deliveries = append(t.deliveries, delivery{give: f}) }

// close writes what is not written yet.
func (t *txn) close() {
	t.flush()
	t.flushEvents()
	// The two clocks are read together often enough to bridge a reboot.
	const fresh = instant(time.Minute)
	if t.wrote && t.now-instant(t.meta.seenBoot) > fresh {
		t.dirty = true
	}
	if t.dirty {
		m := &t.meta
		m.seenBoot = int64(t.now)
		t.exec(`UPDATE meta SET token = ?, reserved = ?, durable = ?, place = ?, event = ?, due = ?, watched = ?, seen_boot = ?, seen_wall = ?`,
			m.token, m.reserved, m.durable, m.place, m.event, m.due, m.watched, m.seenBoot, t.wall.UnixNano())
	}
}

// fail notes that the store failed.
func (t *txn) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// exec executes a statement that writes.
func (t *txn) exec(query string, args ...any) {
	if t.err == nil {
		t.wrote = true
		t.fail(t.b.file.exec(t.ctx, query, args...))
	}
}

// each reads rows. It calls row for each of them, which calls scan once.
func (t *txn) each(query string, args []any, row func(scan func(dest ...any))) {
	if t.err == nil {
		t.fail(t.read(query, args, row))
	}
}

func (t *txn) read(query string, args []any, row func(scan func(dest ...any))) error {
	stmt, err := t.b.file.prepared(t.ctx, query) //nolint:sqlclosecheck // it is kept
	if err != nil {
		return err
	}
	rows, err := stmt.QueryContext(t.ctx, args...) //nolint:sqlclosecheck // it is, below
	if err != nil {
		return said(query, err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err returns it
	for rows.Next() && err == nil {
		row(func(dest ...any) { err = rows.Scan(dest...) })
	}
	if err = errors.Join(err, rows.Err()); err != nil {
		return said(query, err)
	}
	return nil
}

// one reads the first row into dest, and reports whether there was one.
func (t *txn) one(query string, args []any, dest ...any) bool {
	found := false
	t.each(query, args, func(scan func(...any)) {
		if !found {
			found = true
			scan(dest...)
		}
	})
	return found && t.err == nil
}

// texts reads the first column of all rows.
func (t *txn) texts(query string, args ...any) []string {
	var texts []string
	t.each(query, args, func(scan func(...any)) {
		var s string
		scan(&s)
		texts = append(texts, s)
	})
	return texts
}

// Token implements lockstate.Store. A token is the microseconds of the wall clock, and always more than
// the last one. So tokens grow when that clock is set back, and also when the file is lost or goes back
// to an old copy. When a reservation is half used up, the next one follows, so that it is on the disk before it is needed.
func (t *txn) Token(*lock) fence.Token {
	m := &t.meta
	m.token = max(m.token+1, t.wall.UnixMicro())
	t.dirty = true
	if m.token > m.reserved-t.b.file.reserve/2 {
		m.reserved = m.token + t.b.file.reserve
	}
	return fence.Token(m.token) //nolint:gosec // it counts up from 0
}

// wantsSync reports whether a reservation should be written to the disk.
func (t *txn) wantsSync() bool {
	return t.meta.reserved > t.meta.durable && t.meta.token > t.meta.durable-t.b.file.reserve/2
}

// nextPlace returns a place behind all others.
func (t *txn) nextPlace() int64 {
	t.meta.place++
	t.dirty = true
	return t.meta.place
}

// ends notes that something new ends at that time.
func (t *txn) ends(at instant) {
	if int64(at) < t.meta.due {
		t.meta.due, t.dirty = int64(at), true
	}
}

// touch notes that the lease has to be written.
func (t *txn) touch(l *lease) {
	if !l.Own.dirty {
		l.Own.dirty = true
		t.touched = append(t.touched, l)
	}
}

// settle grants every lock that changed to the first waiters in its queue that it has room for.
func (t *txn) settle() {
	for l := t.changed.Next(); l != nil; l = t.changed.Next() {
		lockstate.Settle(t, l, nil)
	}
}

// flush writes the leases that changed.
func (t *txn) flush() {
	for _, l := range t.touched {
		l.Own.dirty = false
		t.saveLease(l)
	}
	t.touched = t.touched[:0]
}

func (t *txn) saveLease(l *lease) {
	if l.State == lockstate.Over {
		t.exec(`DELETE FROM leases WHERE name = ? AND lease = ?`, l.Lock.Name, string(l.ID))
		return
	}
	t.exec(`INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (name, lease) DO UPDATE SET session = excluded.session, addr = excluded.addr, held = excluded.held,
		place = excluded.place, ttl = excluded.ttl, token = excluded.token, since = excluded.since, ends = excluded.ends`,
		l.Lock.Name, string(l.ID), string(l.Own.session), l.Own.addr, l.State == lockstate.Held, l.Own.place,
		int(l.Claim.Mode), l.Claim.Permits, l.Claim.Limit, l.Owner, l.Note, l.Timed, int64(l.TTL),
		int64(l.Token), nanos(l.Asked), nanos(l.Since), int64(l.Own.ends), l.Waited) //nolint:gosec // it counts up from 0
}

// nanos returns a time as the tables have it: 0 for none.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// lock returns the lock with all its leases, held and in the queue.
func (t *txn) lock(name string) *lock {
	if l, ok := t.locks[name]; ok {
		return l
	}
	l := &lock{Name: name}
	t.locks[name] = l
	var all []*lease
	t.each(`SELECT lease, session, addr, held, place, mode, permits, cap, owner, note, timed, ttl, token, asked, since, ends, waited
		FROM leases WHERE name = ?`, []any{name}, func(scan func(...any)) {
		x := &lease{Lock: l}
		var out bool
		var asked, since int64
		scan(&x.ID, &x.Own.session, &x.Own.addr, &out, &x.Own.place, &x.Claim.Mode, &x.Claim.Permits, &x.Claim.Limit, &x.Owner,
			&x.Note, &x.Timed, &x.TTL, &x.Token, &asked, &since, &x.Own.ends, &x.Waited)
		x.Asked, x.Since = time.Unix(0, asked), time.Unix(0, since)
		if out {
			x.State = lockstate.Held
		}
		all = append(all, x)
	})
	slices.SortFunc(all, func(a, b *lease) int { return cmp.Compare(a.Own.place, b.Own.place) })
	for _, x := range all {
		l.Add(x)
	}
	return l
}
