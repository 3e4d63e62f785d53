package sqllease_test

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// tables is a database in memory that does what sqllease.Store asks of one: rows of locks, which a transaction keeps
// from others until it ends; leases, sessions, tombs and losses.
type tables struct {
	mu       sync.Mutex // guards all below
	turns    map[string]chan struct{}
	early    bool // commits are seen before they survive a crash
	floor    int64
	locks    map[string]*lockRow
	leases   map[sqllease.Key]sqllease.LeaseRow
	sessions map[backend.SessionID]sqllease.SessionRow
	tombs    map[sqllease.Key]time.Time
	losses   map[backend.Loss]sqllease.LossRow // by the session and the lease
	values   map[string]*sqllease.Leases       // by their addresses
}

// lockRow is the row of a lock. A thin lock has a lease in it; one that is not has its leases in the table.
type lockRow struct {
	last int64
	used time.Time
	thin *sqllease.LeaseRow
}

func newTables() *tables {
	return &tables{
		turns: make(map[string]chan struct{}), locks: make(map[string]*lockRow), leases: make(map[sqllease.Key]sqllease.LeaseRow),
		sessions: make(map[backend.SessionID]sqllease.SessionRow), tombs: make(map[sqllease.Key]time.Time),
		losses: make(map[backend.Loss]sqllease.LossRow), values: make(map[string]*sqllease.Leases),
	}
}

// held are rows that a transaction or a statement has locked.
type held struct {
	tables *tables
	rows   []chan struct{}
}

// lockTimeout is how long a statement waits for a row.
const lockTimeout = 200 * time.Millisecond

// lock locks rows, in order, and waits for those that others have.
func (h *held) lock(ctx context.Context, rows ...string) error {
	for _, row := range rows {
		h.tables.mu.Lock()
		turn := h.tables.turns[row]
		if turn == nil {
			turn = make(chan struct{}, 1)
			h.tables.turns[row] = turn
		}
		h.tables.mu.Unlock()
		select {
		case turn <- struct{}{}:
			h.rows = append(h.rows, turn)
		case <-time.After(lockTimeout):
			return errLockTimeout
		case <-ctx.Done():
			return errLockTimeout
		}
	}
	return nil
}

func (h *held) unlock() {
	for _, turn := range h.rows {
		<-turn
	}
	h.rows = nil
}

// rowOfLock, rowOfSession and rowOfLease name rows.
func rowOfLock(name string) string             { return "lock " + name }
func rowOfSession(id backend.SessionID) string { return "session " + string(id) }
func rowOfLease(k sqllease.Key) string         { return "lease " + string(k.ID) + " " + k.Name }
func rowsOf[T any](all []T, row func(T) string) []string {
	var rows []string
	for _, x := range all {
		rows = append(rows, row(x))
	}
	return rows
}

func (d *tables) lives(id backend.SessionID) bool {
	s, ok := d.sessions[id]
	return ok && s.Cause == "" && s.Ends.After(time.Now())
}

func (d *tables) buried(k sqllease.Key) bool { return d.tombs[k].After(time.Now()) }

// number returns a number above all of the row, and above the clock.
func (d *tables) number(r *lockRow) int64 { return max(r.last, d.floor, time.Now().UnixMicro()) }

// row returns the row of a lock, which it makes if there is none.
func (d *tables) row(name string) *lockRow {
	r := d.locks[name]
	if r == nil {
		r = &lockRow{last: d.floor}
		d.locks[name] = r
	}
	r.used = time.Now()
	return r
}

// read reads leases of locks, and what belongs to them.
func (d *tables) read(s *sqllease.Scope) *sqllease.View {
	v := &sqllease.View{Now: time.Now(), Floor: d.floor, Early: d.early}
	sessions := slices.Clone(s.Sessions)
	see := func(l sqllease.LeaseRow) {
		v.Leases = append(v.Leases, l)
		sessions = append(sessions, l.Session)
	}
	rest := make(map[string]*sqllease.RestRow)
	asked := slices.Concat(s.Leases, s.Back)
	for k, l := range d.leases {
		front, long := s.Front[k.Name]
		switch {
		case !slices.Contains(s.Names, k.Name):
		case l.Held, !long, l.Place <= front, slices.Contains(asked, k):
			see(l)
		default:
			r := rest[k.Name]
			if r == nil {
				r = &sqllease.RestRow{Name: k.Name, Limit: -1}
				rest[k.Name] = r
			}
			r.Count++
			if l.Claim.Mode == backend.Shared {
				r.Limit = max(r.Limit, l.Claim.Limit)
			}
		}
	}
	for _, r := range rest {
		v.Rest = append(v.Rest, *r)
	}
	for _, name := range s.Names {
		if r := d.locks[name]; r != nil && r.thin != nil {
			see(*r.thin)
		}
	}
	for _, id := range sessions {
		if x, ok := d.sessions[id]; ok {
			v.Sessions = append(v.Sessions, x)
		}
	}
	for _, x := range d.losses {
		if slices.Contains(s.Listeners, x.Session) {
			v.Losses = append(v.Losses, x.Loss)
		}
	}
	for _, k := range s.Leases {
		if d.buried(k) {
			v.Buried = append(v.Buried, k)
		}
	}
	return v
}

// transaction is a transaction in progress.
type transaction struct {
	server *server
	scope  *sqllease.Scope
	held   held
	took   map[string]int64 // the greatest number of each lock that it may issue
}

// begin locks the rows of locks, and makes those that are missing. It writes nothing else before the commit.
func (d *tables) begin(ctx context.Context, t *transaction) (*sqllease.View, error) {
	t.held.tables = d
	if err := t.held.lock(ctx, rowsOf(t.scope.Names, rowOfLock)...); err != nil {
		t.held.unlock()
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	t.took = make(map[string]int64)
	for _, name := range t.scope.Names {
		t.took[name] = d.number(d.row(name)) + sqllease.Reserve
	}
	v := d.read(t.scope)
	v.Taken = maps.Clone(t.took)
	return v, nil
}

func (d *tables) again(ctx context.Context, t *transaction, sessions []backend.SessionID, leases []sqllease.Key) (*sqllease.View, error) {
	if err := t.held.lock(ctx, slices.Concat(rowsOf(sessions, rowOfSession), rowsOf(leases, rowOfLease))...); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	v := new(sqllease.View)
	for _, id := range sessions {
		if x, ok := d.sessions[id]; ok {
			v.Sessions = append(v.Sessions, x)
		}
	}
	for _, k := range leases {
		if l, ok := d.leases[k]; ok {
			v.Leases = append(v.Leases, l)
		}
	}
	return v, nil
}

// commit writes the changes, and returns the notifications that it sends.
func (d *tables) commit(t *transaction, c *sqllease.Changes) []sqllease.Notification {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, last := range t.took {
		d.locks[name].last, d.locks[name].thin = last, nil
	}
	until := c.Now.Add(sqllease.Remembered)
	for _, s := range c.Killed {
		was, ok := d.sessions[s.ID]
		if !ok || was.Ends.After(c.Now) {
			was.Ends = c.Now
		}
		was.ID, was.Cause = s.ID, s.Cause
		d.sessions[s.ID] = was
	}
	for _, k := range c.Gone {
		delete(d.leases, k)
	}
	for _, l := range c.Leases {
		l.Thin = false
		k := sqllease.Key{Name: l.Name, ID: l.Lease}
		if was, ok := d.leases[k]; ok { // only this may change
			was.Session, was.Addr, was.Held, was.Place, was.Token, was.Since, was.Ends = l.Session, l.Addr, l.Held, l.Place, l.Token, l.Since, l.Ends
			l = was
		}
		d.leases[k] = l
	}
	for _, l := range c.Lasts {
		d.locks[l.Name].last = l.Last
	}
	for _, k := range c.Buried {
		d.tombs[k] = until
	}
	for _, x := range c.Losses {
		d.losses[backend.Loss{Session: x.Session, Lease: x.Lease}] = x
	}
	return c.Notifications
}

// quick executes what it can of acquisitions and releases.
func (d *tables) quick(ctx context.Context, q *sqllease.Quick) error {
	h := held{tables: d}
	defer h.unlock()
	names := rowsOf(q.Acquire, func(l sqllease.LeaseRow) string { return rowOfLock(l.Name) })
	if err := h.lock(ctx, append(names, rowsOf(q.Release, func(k sqllease.Key) string { return rowOfLock(k.Name) })...)...); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range q.Acquire {
		r := d.row(l.Name)
		k := sqllease.Key{Name: l.Name, ID: l.Lease}
		if !d.free(l.Name) || d.buried(k) || l.Session != "" && !d.lives(l.Session) {
			continue
		}
		r.last = d.number(r) + 1
		l.Thin, l.Token, l.Place, l.Since, l.Asked = true, r.last, r.last, time.Now(), time.Now()
		if l.Timed {
			l.Ends = time.Now().Add(l.TTL)
		}
		r.thin = &l
		q.Granted = append(q.Granted, sqllease.QuickGrant{Name: l.Name, Token: l.Token, Since: l.Since})
	}
	for _, k := range q.Release {
		if r := d.locks[k.Name]; r != nil && r.thin != nil && r.thin.Lease == k.ID && d.living(r.thin) {
			r.thin = nil
			q.Released = append(q.Released, k.Name)
		}
	}
	return nil
}

// free reports whether the lock has no lease, dead or alive.
func (d *tables) free(name string) bool {
	for k := range d.leases {
		if k.Name == name {
			return false
		}
	}
	return d.locks[name].thin == nil
}

// living reports whether a lease has not expired.
func (d *tables) living(l *sqllease.LeaseRow) bool {
	if l.Held && l.Timed {
		return l.Ends.After(time.Now())
	}
	return d.lives(l.Session)
}

func (d *tables) openSession(ctx context.Context, id backend.SessionID, ttl time.Duration, addr string) (bool, error) {
	h := held{tables: d}
	defer h.unlock()
	if err := h.lock(ctx, rowOfSession(id)); err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	was, ok := d.sessions[id]
	if ok && !d.lives(id) {
		return false, nil
	}
	d.sessions[id] = sqllease.SessionRow{ID: id, TTL: ttl, Ends: time.Now().Add(ttl), Addr: cmp.Or(addr, was.Addr)}
	return true, nil
}

func (d *tables) renew(ctx context.Context, r *sqllease.Renewals) error {
	h := held{tables: d}
	defer h.unlock()
	var locks []string
	for _, k := range r.Leases {
		locks = append(locks, rowOfLock(k.Name))
	}
	slices.Sort(locks)
	rows := append(slices.Compact(locks), rowOfSession(r.Session))
	if err := h.lock(ctx, append(rows, rowsOf(slices.SortedFunc(slices.Values(r.Leases), sqllease.Key.Compare), rowOfLease)...)...); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.Session != "" {
		if r.SessionLost = !d.lives(r.Session); !r.SessionLost {
			s := d.sessions[r.Session]
			s.Ends = time.Now().Add(s.TTL)
			d.sessions[r.Session] = s
		}
		for _, x := range d.losses {
			if x.Session == r.Session {
				r.Lost = append(r.Lost, x.Loss)
			}
		}
	}
	for i, k := range r.Leases {
		l, ok := d.leases[k]
		if row := d.locks[k.Name]; !ok && row != nil && row.thin != nil && row.thin.Lease == k.ID {
			l, ok = *row.thin, true
		}
		if !ok || !l.Held || !l.Timed || !d.living(&l) {
			continue
		}
		l.TTL = cmp.Or(r.TTLs[i], l.TTL)
		l.Ends = time.Now().Add(l.TTL)
		if l.Thin {
			d.locks[k.Name].thin = &l
		} else {
			d.leases[k] = l
		}
		r.Renewed[k] = sqllease.Renewed{Token: l.Token, Left: l.TTL}
	}
	return nil
}

// dead lists the locks with something that has been over for at least age.
func (d *tables) dead(age time.Duration) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := make(map[string]bool)
	over := func(l *sqllease.LeaseRow) bool {
		ends := d.sessions[l.Session].Ends
		if l.Held && l.Timed {
			ends = l.Ends
		}
		return !ends.After(time.Now().Add(-age))
	}
	for k, l := range d.leases {
		if over(&l) {
			names[k.Name] = true
		}
	}
	for name, r := range d.locks {
		if r.thin != nil && r.thin.Timed && over(r.thin) {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// sweep deletes what has been over for at least age, and the rows of locks that were not used for so long. Rows that
// others have locked are left out.
func (d *tables) sweep(age time.Duration) *sqllease.Swept {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := time.Now().Add(-age)
	maps.DeleteFunc(d.tombs, func(_ sqllease.Key, until time.Time) bool { return until.Before(time.Now()) })
	maps.DeleteFunc(d.losses, func(_ backend.Loss, x sqllease.LossRow) bool { return x.Until.Before(time.Now()) })
	used := make(map[backend.SessionID]bool)
	for _, l := range d.leases {
		used[l.Session] = true
	}
	maps.DeleteFunc(d.sessions, func(id backend.SessionID, s sqllease.SessionRow) bool { return !used[id] && s.Ends.Before(before) })
	w := new(sqllease.Swept)
	for _, name := range slices.Sorted(maps.Keys(d.locks)) {
		r := d.locks[name]
		if len(d.turns[rowOfLock(name)]) > 0 || r.used.After(before) {
			continue
		}
		w.Names = append(w.Names, name)
		entombed := slices.ContainsFunc(slices.Collect(maps.Keys(d.tombs)), func(k sqllease.Key) bool { return k.Name == name })
		switch {
		case r.thin != nil && !r.thin.Timed && !d.lives(r.thin.Session):
			w.Dead = append(w.Dead, name)
		case d.free(name) && !entombed:
			d.floor = max(d.floor, r.last)
			delete(d.locks, name)
			w.Deleted++
		}
	}
	return w
}

// names lists locks that have leases which have not expired.
func (d *tables) names(req backend.ListRequest) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	some := make(map[string]bool)
	note := func(l *sqllease.LeaseRow) {
		if l.Name > req.After && strings.HasPrefix(l.Name, req.Prefix) && d.living(l) {
			some[l.Name] = true
		}
	}
	for _, l := range d.leases {
		note(&l)
	}
	for _, r := range d.locks {
		if r.thin != nil {
			note(r.thin)
		}
	}
	names := slices.Sorted(maps.Keys(some))
	return names[:min(len(names), req.Limit)]
}

// locksOf lists the locks in which a session has rows of leases. A thin lease ends with its session.
func (d *tables) locksOf(id backend.SessionID) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	some := make(map[string]bool)
	for _, l := range d.leases {
		if l.Session == id && (!l.Held || !l.Timed) {
			some[l.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(some))
}
