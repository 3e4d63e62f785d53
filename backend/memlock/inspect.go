package memlock

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
)

// Inspect returns the lock's holders and waiters. Errors: *InvalidError, ErrClosed, ctx's
// cause.
func (b *Backend) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	if err := backend.ValidateName(name); err != nil {
		return backend.LockInfo{}, err
	}
	if err := b.enter(ctx); err != nil {
		return backend.LockInfo{}, err
	}
	defer b.store.leave()
	if l, ok := b.store.locks[name]; ok {
		return b.store.info(l), nil
	}
	return backend.LockInfo{Name: name}, nil
}

// List returns the locks that are held or waited for, by name. Errors: *InvalidError,
// ErrClosed, ctx's cause.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	if err := req.Validate(); err != nil {
		return backend.ListPage{}, err
	}
	if err := b.enter(ctx); err != nil {
		return backend.ListPage{}, err
	}
	defer b.store.leave()
	var names []string
	for n := range b.store.locks {
		if n > req.After && strings.HasPrefix(n, req.Prefix) {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	limit := req.Limit
	if limit == 0 {
		limit = backend.MaxListLimit
	}
	var page backend.ListPage
	if len(names) > limit {
		names = names[:limit]
		page.Next = names[limit-1]
	}
	for _, n := range names {
		page.Locks = append(page.Locks, b.store.info(b.store.locks[n]))
	}
	return page, nil
}

func (s *Store) info(l *lock) backend.LockInfo {
	limit, _ := backend.LimitInForce(l.holders.claims, l.line.claims)
	if !l.holders.empty() && l.holders.claims[0].Mode == backend.Exclusive {
		limit = 1
	}
	return backend.LockInfo{
		Name: l.name, Limit: limit, Token: l.token,
		Holders: s.holders(l.holders.leases), Waiters: l.waiters(),
	}
}

func (s *Store) holders(leases []*lease) []backend.Holder {
	holders := make([]backend.Holder, 0, len(leases))
	for _, h := range leases {
		x := backend.Holder{
			Lease: h.id, Owner: h.claim.Owner, Note: h.note, Mode: h.claim.Mode, Permits: h.claim.Permits,
			Token: h.token, Since: h.since,
		}
		if h.timed {
			x.Left = time.Duration(h.ends - s.now)
		} else {
			x.Session, x.Left = h.session.id, time.Duration(h.session.ends-s.now)
		}
		holders = append(holders, x)
	}
	return holders
}

func (l *lock) waiters() []backend.Waiter {
	var waiters []backend.Waiter
	for _, w := range l.line.leases {
		waiters = append(waiters, backend.Waiter{
			Lease: w.id, Session: w.session.id, Owner: w.claim.Owner, Note: w.note,
			Mode: w.claim.Mode, Permits: w.claim.Permits, Since: w.asked,
		})
	}
	return waiters
}
