package pglock

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
)

// A waiter sends nothing while it waits. It is woken by a notification. For a holder
// that dies, and against notifications that get lost, there is one timer for all
// waiters of a value: it fires when the first of the leases before them can end, or
// after longestRest, and then one statement asks what became of all of them.

const (
	longestRest = 30 * time.Second
	// deafRest is the same for as long as no notifications come.
	deafRest = 500 * time.Millisecond
	// margin is how much later than the end the timer fires, with jitter, so that not
	// all values look at once.
	margin = 2 * time.Millisecond
	jitter = 20 * time.Millisecond
	// leastRest is the least time between two questions.
	leastRest = 20 * time.Millisecond
	// wayOfLetter is how long a notification may be on its way.
	wayOfLetter = 100 * time.Millisecond
)

// waiter is an Acquire whose lease is in line.
type waiter struct {
	key     leaseKey
	session backend.SessionID
	timed   bool
	given   chan verdict // capacity 1, never closed

	// Guarded by Backend.mu.
	inLine bool      // it is committed that it stands in line
	place  int64     // where; a grant has a greater number
	asked  time.Time // a local time from before that
	gone   bool      // the call has returned
}

// verdict is what became of a waiter.
type verdict struct {
	grant backend.Grant
	err   error
}

// give answers the waiter; a second answer is dropped.
func (w *waiter) give(v verdict) {
	select {
	case w.given <- v:
	default:
	}
}

// await notes that somebody waits.
func (b *Backend) await(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !w.gone && !slices.Contains(b.waiting[w.key], w) {
		b.waiting[w.key] = append(b.waiting[w.key], w)
	}
}

// stands notes that the waiter is in line, and that nothing changes before at. What was
// said of its lease meanwhile is looked at now.
func (b *Backend) stands(w *waiter, place int64, asked, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.inLine, w.place, w.asked = true, place, asked
	if _, said := b.look.leases[w.key]; said {
		kick(b.toLook)
	}
	b.schedule(at)
}

// forget notes that the call of the waiter returns.
func (b *Backend) forget(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.gone = true
	ws := slices.DeleteFunc(b.waiting[w.key], func(x *waiter) bool { return x == w })
	if len(ws) > 0 {
		b.waiting[w.key] = ws
		return
	}
	delete(b.waiting, w.key)
	delete(b.look.leases, w.key)
}

func (b *Backend) waitersOf(key leaseKey) []*waiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.waiting[key])
}

// schedule makes the alarm ring at the time, unless it rings earlier. mu is held.
func (b *Backend) schedule(at time.Time) {
	now := time.Now()
	if rest := now.Add(longestRest); at.After(rest) {
		at = rest
	}
	if rest := now.Add(deafRest); !b.hearing && at.After(rest) {
		at = rest
	}
	if b.closed || !b.alarmAt.IsZero() && !at.Before(b.alarmAt) {
		return
	}
	b.alarmAt = at
	b.alarm.Reset(max(0, at.Sub(now)) + margin + rand.N(jitter))
}

// rouse is what the alarm does.
func (b *Backend) rouse() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.alarmAt = time.Time{}
	b.look.all = true
	kick(b.toLook)
}

// lookAll looks at everything, because notifications may have been lost.
func (b *Backend) lookAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look.all = true
	kick(b.toLook)
}

// lookAtLetters looks at what letters, or the alarm, say is to be looked at.
func (b *Backend) lookAtLetters() {
	for {
		select {
		case <-b.toLook:
		case <-b.life.Done():
			return
		}
		if err := b.lookOnce(b.life); err != nil && b.life.Err() == nil {
			b.mu.Lock()
			b.look.all = true
			b.schedule(time.Now().Add(deafRest))
			b.mu.Unlock()
		}
	}
}

// glance is what one look is about.
type glance struct {
	all      bool
	waiters  []*waiter
	sessions []backend.SessionID
}

// next takes what there is to look at.
func (b *Backend) next() glance {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := glance{all: b.look.all}
	for k, ws := range b.waiting {
		if _, said := b.look.leases[k]; !said && !g.all {
			continue
		}
		for _, w := range ws {
			if w.inLine {
				g.waiters = append(g.waiters, w)
				delete(b.look.leases, k)
			}
		}
	}
	for id, l := range b.sessions {
		if _, said := b.look.sessions[id]; l.open && (said || g.all) {
			g.sessions = append(g.sessions, id)
			delete(b.look.sessions, id)
		}
	}
	b.look.all = false
	for id := range b.look.sessions {
		if b.sessions[id] == nil {
			delete(b.look.sessions, id)
		}
	}
	for k := range b.look.leases {
		if len(b.waiting[k]) == 0 {
			delete(b.look.leases, k)
		}
	}
	return g
}

const (
	lookAtLeases = `SELECT x.n, l.lease IS NOT NULL, coalesce(l.held, false), coalesce(l.timed, false), coalesce(l.session, ''),
			coalesce(l.token, 0), coalesce(l.since, clock_timestamp()), coalesce(l.ends, clock_timestamp()), coalesce(l.joined, false),
			x.session = '' OR coalesce(s.cause = '' AND s.ends > clock_timestamp(), false)
		FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS x (name, lease, session, n)
		LEFT JOIN @leases l ON l.name = x.name AND l.lease = x.lease LEFT JOIN @sessions s ON s.id = x.session`
	// When the next of the leases of each lock can end; see lease.bound.
	lookAtEnds = `SELECT l.name, (1000000 * extract(epoch FROM min(CASE
				WHEN l.held AND l.timed THEN l.ends
				WHEN s.cause = '' THEN CASE WHEN l.timed THEN least(s.ends, clock_timestamp() + l.ttl * interval '1 microsecond') ELSE s.ends END
				ELSE clock_timestamp() END) - clock_timestamp()))::bigint
		FROM @leases l LEFT JOIN @sessions s ON s.id = l.session WHERE l.name = ANY($1::text[]) GROUP BY l.name`
	lookAtSessions = `SELECT x.id, coalesce(s.cause, 'gone'), coalesce(s.cause = '' AND s.ends > clock_timestamp(), false)
		FROM unnest($1::text[]) AS x (id) LEFT JOIN @sessions s USING (id)`
	lookAtLosses = `SELECT session, lease, cause, reason FROM @losses WHERE session = ANY($1::text[]) AND until > clock_timestamp()`
)

// lookOnce asks what became of those who wait or listen, and tells them.
func (b *Backend) lookOnce(ctx context.Context) error {
	g := b.next()
	if len(g.waiters)+len(g.sessions) == 0 {
		return nil
	}
	var names, leases, sessions []string
	for _, w := range g.waiters {
		names, leases, sessions = append(names, w.key.name), append(leases, string(w.key.id)), append(sessions, string(w.session))
	}
	var rows []seen
	var now time.Time
	var losses []backend.Loss
	rest := make(map[string]time.Duration)
	asked := time.Now()
	err := b.direct(ctx, opLook, func(q *pgx.Batch) {
		rows, losses = nil, nil
		asked = time.Now()
		q.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
		if len(g.waiters) > 0 {
			q.Queue(b.sql(lookAtLeases), names, leases, sessions).Query(func(r pgx.Rows) error { return scanSeen(r, &rows) })
			if g.all {
				q.Queue(b.sql(lookAtEnds), names).Query(func(r pgx.Rows) error { return scanRest(r, rest) })
			}
		}
		if len(g.sessions) > 0 {
			q.Queue(b.sql(lookAtSessions), texts(g.sessions)).Query(func(r pgx.Rows) error { return scanDead(r, &losses) })
			q.Queue(b.sql(lookAtLosses), texts(g.sessions)).Query(func(r pgx.Rows) error { return scanLosses(r, &losses) })
		}
	})
	if err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, id := range g.sessions {
			b.look.session(id)
		}
		return err
	}
	for _, r := range rows {
		g.waiters[r.n-1].see(&r, asked, now, g.all)
	}
	for _, x := range losses {
		b.tellLoss(x)
	}
	if g.all {
		b.restUntil(asked, rest)
	}
	return nil
}

// restUntil sets the alarm for those who wait on, and has locks seen to in which
// something is over.
func (b *Backend) restUntil(asked time.Time, rest map[string]time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		return
	}
	at := asked.Add(longestRest)
	for name, d := range rest {
		if d <= 0 {
			b.tend(name)
			d = leastRest
		}
		if end := asked.Add(max(d, leastRest)); end.Before(at) {
			at = end
		}
	}
	b.schedule(at)
}

// tend has a lock seen to: what is over is ended, and what it held is handed over. mu
// is held.
func (b *Backend) tend(name string) {
	if b.closed {
		return
	}
	r := &request{op: "tend", scope: scope{names: []string{name}}, run: func(*txn) error { return nil }, done: make(chan struct{})}
	b.queue = append(b.queue, r)
	b.launch()
}

// seen is what a look tells of a waiter.
type seen struct {
	n                               int
	there, held, timed, joined, own bool
	session                         backend.SessionID
	token                           int64
	since, ends                     time.Time
}

func scanSeen(rows pgx.Rows, all *[]seen) error {
	return each(rows, func() error {
		var x seen
		err := rows.Scan(&x.n, &x.there, &x.held, &x.timed, &x.session, &x.token, &x.since, &x.ends, &x.joined, &x.own)
		*all = append(*all, x)
		return err //nolint:wrapcheck // see unavailable
	})
}

func scanRest(rows pgx.Rows, rest map[string]time.Duration) error {
	return each(rows, func() error {
		var name string
		var left int64
		err := rows.Scan(&name, &left)
		rest[name] = micros(left)
		return err //nolint:wrapcheck // see unavailable
	})
}

// see tells the waiter what a look found.
func (w *waiter) see(x *seen, asked, now time.Time, byTimer bool) {
	switch {
	case x.there && x.held && !x.timed && x.session != w.session:
		w.give(verdict{err: backend.ErrLost}) // it will die with the other session
	case x.there && x.held && !x.timed && !x.own, !x.there && !x.own, x.there && !x.held && !x.own:
		w.give(verdict{err: backend.ErrSessionLost})
	case !x.there:
		w.give(verdict{err: backend.ErrLost})
	case x.held:
		g := backend.Grant{Token: token(x.token), Asked: asked, Since: x.since, Waited: true, Joined: x.joined}
		if x.timed {
			g.Left = x.ends.Sub(now)
		}
		// One that was granted just now may be in a letter that is on its way.
		g.ByTimer = byTimer && now.Sub(x.since) > wayOfLetter
		w.give(verdict{grant: g})
	}
}
