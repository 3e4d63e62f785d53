package sqllease

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// Acquire acquires the lock, or waits in the queue for it when req.Wait is set. When ctx ends
// during the wait, the place in the queue stays. Errors: *InvalidError, *LimitError, *HeldError,
// ErrLost, ErrSessionLost, *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	if err := req.Validate(b.caps); err != nil {
		return backend.Grant{}, err
	}
	if b.final.Has(req.Session, req.Lease) && b.life.Err() == nil {
		return backend.Grant{}, backend.ErrLost
	}
	w := &waiter{key: Key{req.Name, req.Lease}, session: req.Session, timed: req.Timed, given: make(chan verdict, 1)}
	defer b.forget(w)
	var grant backend.Grant
	inLine := false
	r := &request{op: "acquire", scope: Scope{Names: []string{req.Name}, Leases: []Key{w.key}}}
	r.quick = &quick{acquire: &req, lease: req.Lease, granted: func(g backend.Grant) { grant = g }}
	if req.Session != "" {
		r.scope.Sessions = []backend.SessionID{req.Session}
	}
	r.run = func(t *txn) error {
		inLine = false
		l, err := t.take(&req)
		if err != nil {
			return err
		}
		if l.State == lockstate.Waiting {
			inLine = true
			b.await(w) // now: the next request of this very transaction may free the lock
			t.after = append(t.after, func() { b.stands(w, l.Own.place, t.asked, t.asked.Add(t.bound(l.Lock))) })
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
		return backend.Grant{}, backend.ErrLost // it expired on the way
	}
	if b.final.Has(req.Session, req.Lease) {
		return backend.Grant{}, backend.ErrLost // an earlier grant of it was lost
	}
	return grant, nil
}

func (b *Leases) wait(ctx context.Context, w *waiter) (backend.Grant, error) {
	select {
	case v := <-w.given:
		return v.grant, v.err
	case <-ctx.Done():
		return backend.Grant{}, context.Cause(ctx)
	case <-b.life.Done():
		return backend.Grant{}, backend.ErrClosed
	}
}

// Release releases a lease, or its place in the queue. With req.Abandon the lease can never be
// granted afterwards. Errors: ErrLost where there is no such lease, unless req.Abandon is set;
// *InvalidError; *UnavailableError; ErrClosed; ctx's cause.
func (b *Leases) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	r := &request{op: "release", scope: Scope{Names: []string{req.Name}, Back: []Key{{req.Name, req.Lease}}}}
	if !req.Abandon {
		r.quick = &quick{lease: req.Lease}
	}
	r.run = func(t *txn) error {
		l := t.lock(req.Name).Find(req.Lease)
		if l != nil {
			t.end(l, backend.ErrLost, backend.EventReleased, "")
		}
		if req.Abandon {
			t.bury(Key{req.Name, req.Lease})
			return nil
		}
		if l == nil {
			return backend.ErrLost
		}
		return nil
	}
	return b.do(ctx, r)
}

// Break ends all leases that hold the lock. Errors: *InvalidError, *UnavailableError, ErrClosed,
// ctx's cause.
func (b *Leases) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	if err := req.Validate(); err != nil {
		return backend.BreakResult{}, err
	}
	var res backend.BreakResult
	err := b.do(ctx, &request{op: "break", scope: Scope{Names: []string{req.Name}}, run: func(t *txn) error {
		l := t.lock(req.Name)
		res = backend.BreakResult{Token: token(next(l)), Broken: lockstate.Holders(t.rules(), l.Holders.Leases)}
		for _, h := range slices.Clone(l.Holders.Leases) {
			t.lose(h, backend.EventBroken, backend.CauseBroken, req.Reason)
		}
		return nil
	}})
	if err != nil {
		return backend.BreakResult{}, err
	}
	return res, nil
}

// Inspect returns the holders and the waiters of the lock. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	if err := backend.ValidateName(name); err != nil {
		return backend.LockInfo{}, err
	}
	t, err := b.readOnly(ctx, "inspect", []string{name})
	if err != nil {
		return backend.LockInfo{}, err
	}
	return lockstate.Info(t.rules(), t.lock(name)), nil
}

// List returns the locks that have holders or waiters, by name. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Leases) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	if err := req.Validate(); err != nil {
		return backend.ListPage{}, err
	}
	limit := req.Limit
	if limit == 0 {
		limit = backend.MaxListLimit
	}
	req.Limit = limit + 1
	var names []string
	err := b.direct(ctx, "list", func(ctx context.Context) error {
		var err error
		names, err = b.store.Names(ctx, req)
		return err
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
		if info := lockstate.Info(t.rules(), t.lock(n)); len(info.Holders)+len(info.Waiters) > 0 {
			page.Locks = append(page.Locks, info)
		}
	}
	return page, nil
}

// readOnly reads some locks as they are, without what has expired.
func (b *Leases) readOnly(ctx context.Context, op string, names []string) (*txn, error) {
	t := newTxn(b)
	var v *View
	err := b.direct(ctx, op, func(ctx context.Context) error {
		var err error
		v, err = b.store.Read(ctx, names)
		return err
	})
	if err != nil {
		return nil, err
	}
	t.read(v, names)
	t.sort()
	t.watched = false
	t.expire()
	return t, nil
}
