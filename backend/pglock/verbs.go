package pglock

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
)

// Acquire takes the lock, or waits in line for it when req.Wait is set. When ctx ends
// meanwhile the place in line stays. Errors: *InvalidError, *LimitError, *HeldError,
// ErrLost, ErrSessionLost, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if err := req.Validate(b.Capabilities()); err != nil {
		return backend.Grant{}, err
	}
	w := &waiter{key: leaseKey{req.Name, req.Lease}, session: req.Session, timed: req.Timed, given: make(chan verdict, 1)}
	defer b.forget(w)
	var grant backend.Grant
	inLine := false
	r := &request{op: "acquire", scope: scope{names: []string{req.Name}, leases: []leaseKey{w.key}}}
	r.quick = &quick{acquire: &req, lease: req.Lease, granted: func(g backend.Grant) { grant = g }}
	if req.Session != "" {
		r.scope.sessions = []backend.SessionID{req.Session}
	}
	r.run = func(t *txn) error {
		inLine = false
		l, err := t.take(&req)
		if err != nil {
			return err
		}
		if l.state == waiting {
			inLine = true
			b.await(w) // now: the next request of this very transaction may free the lock
			t.after = append(t.after, func() { b.stands(w, l.place, t.asked, t.asked.Add(t.bound(l.lock))) })
			return nil
		}
		grant, err = t.answer(l, req.Session)
		return err
	}
	err := b.do(ctx, r)
	if err == nil && inLine {
		grant, err = b.wait(ctx, w)
	}
	if err != nil {
		return backend.Grant{}, err
	}
	if req.Timed && time.Since(grant.Asked) >= grant.Left {
		return backend.Grant{}, backend.ErrLost // it ran out on the way
	}
	return grant, nil
}

func (b *Backend) wait(ctx context.Context, w *waiter) (backend.Grant, error) {
	select {
	case v := <-w.given:
		return v.grant, v.err
	case <-ctx.Done():
		return backend.Grant{}, context.Cause(ctx)
	case <-b.life.Done():
		return backend.Grant{}, backend.ErrClosed
	}
}

// Release gives a lease back, or its place in line. With req.Abandon it can never be
// granted afterwards. Errors: ErrLost where there is no such lease, unless req.Abandon
// is set; *InvalidError; *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	r := &request{op: "release", scope: scope{names: []string{req.Name}}}
	if !req.Abandon {
		r.quick = &quick{lease: req.Lease}
	}
	r.run = func(t *txn) error {
		l := t.lock(req.Name).find(req.Lease)
		if l != nil {
			t.end(l, backend.ErrLost, backend.EventReleased, "")
		}
		if req.Abandon {
			t.bury(leaseKey{req.Name, req.Lease})
			return nil
		}
		if l == nil {
			return backend.ErrLost
		}
		return nil
	}
	return b.do(ctx, r)
}

// Break takes the lock from all its holders. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	if err := req.Validate(); err != nil {
		return backend.BreakResult{}, err
	}
	var res backend.BreakResult
	err := b.do(ctx, &request{op: "break", scope: scope{names: []string{req.Name}}, run: func(t *txn) error {
		l := t.lock(req.Name)
		res = backend.BreakResult{Token: token(l.next()), Broken: t.holders(l)}
		for _, h := range slices.Clone(l.holders.leases) {
			t.lose(h, backend.EventBroken, backend.CauseBroken, req.Reason)
		}
		return nil
	}})
	if err != nil {
		return backend.BreakResult{}, err
	}
	return res, nil
}

// Inspect tells who holds the lock and who waits. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	if err := backend.ValidateName(name); err != nil {
		return backend.LockInfo{}, err
	}
	t, err := b.readOnly(ctx, "inspect", []string{name})
	if err != nil {
		return backend.LockInfo{}, err
	}
	return t.info(t.lock(name)), nil
}

const listNames = `SELECT DISTINCT l.name FROM @leases l LEFT JOIN @sessions s ON s.id = l.session
	WHERE l.name > $1 AND l.name >= $2 AND l.name < $3 AND starts_with(l.name, $2)
	AND CASE WHEN l.held AND l.timed THEN l.ends > clock_timestamp() ELSE s.cause = '' AND s.ends > clock_timestamp() END
	ORDER BY l.name LIMIT $4`

// List tells the locks that are held or waited for, by name. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	if err := req.Validate(); err != nil {
		return backend.ListPage{}, err
	}
	limit := req.Limit
	if limit == 0 {
		limit = backend.MaxListLimit
	}
	var names []string
	err := b.direct(ctx, "list", func(q *pgx.Batch) {
		names = nil
		q.Queue(b.sql(listNames), req.After, req.Prefix, behind(req.Prefix), limit+1).Query(func(rows pgx.Rows) error {
			return each(rows, func() error {
				var name string
				err := rows.Scan(&name)
				names = append(names, name)
				return err //nolint:wrapcheck // see unavailable
			})
		})
	})
	if err != nil || len(names) == 0 {
		return backend.ListPage{}, err
	}
	var page backend.ListPage
	if len(names) > limit {
		names = names[:limit]
		page.Next = names[limit-1]
	}
	t, err := b.readOnly(ctx, "list", names)
	if err != nil {
		return backend.ListPage{}, err
	}
	for _, n := range names {
		if info := t.info(t.lock(n)); len(info.Holders)+len(info.Waiters) > 0 {
			page.Locks = append(page.Locks, info)
		}
	}
	return page, nil
}

// readOnly reads some locks as they are, without what is over.
func (b *Backend) readOnly(ctx context.Context, op string, names []string) (*txn, error) {
	var t *txn
	err := b.direct(ctx, op, func(q *pgx.Batch) {
		t = newTxn(b)
		t.queueRead(q, &scope{names: names})
	})
	if err != nil {
		return nil, err
	}
	t.sort()
	t.watched = false
	t.expire()
	return t, nil
}
