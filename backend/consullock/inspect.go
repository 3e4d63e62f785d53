package consullock

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// Inspect returns the holders of the lock and its waiters. Holder.Left is 0, because Consul does
// not report it. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Inspect(ctx context.Context, lock string) (backend.LockInfo, error) {
	if err := backend.ValidateName(lock); err != nil {
		return backend.LockInfo{}, err
	}
	ctx, done, err := b.sessions.Begin(ctx)
	if err != nil {
		return backend.LockInfo{}, err
	}
	defer done()
	l, err := b.look(ctx, lock)
	if err != nil {
		return backend.LockInfo{}, b.fail(ctx, opInspect, err, false)
	}
	return describe(lock, l), nil
}

func describe(lock string, l line) backend.LockInfo {
	info := backend.LockInfo{Name: lock}
	info.Limit, _ = backend.LimitInForce(l.Claims)
	for i, e := range l.all {
		since, c := time.Unix(0, e.Since), l.Claims[i]
		if i >= l.Out {
			info.Waiters = append(info.Waiters, backend.Waiter{
				Lease: e.lease, Session: e.Session, Owner: e.Owner, Note: e.Note, Mode: c.Mode, Permits: c.Permits, Since: since,
			})
			continue
		}
		if c.Mode == backend.Exclusive {
			info.Limit = 1
		}
		info.Token = max(info.Token, fence.Token(e.created))
		info.Holders = append(info.Holders, backend.Holder{
			Lease: e.lease, Session: e.Session, Owner: e.Owner, Note: e.Note, Mode: c.Mode, Permits: c.Permits,
			Token: fence.Token(e.created), Since: since,
		})
	}
	return info
}

// List returns the locks that are held or waited for, by name. It reads the names of all locks that
// begin with the prefix. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	if err := req.Validate(); err != nil {
		return backend.ListPage{}, err
	}
	ctx, done, err := b.sessions.Begin(ctx)
	if err != nil {
		return backend.ListPage{}, err
	}
	defer done()
	page, err := b.list(ctx, &req)
	if err != nil {
		return backend.ListPage{}, b.fail(ctx, opList, err, false)
	}
	return page, nil
}

func (b *Backend) list(ctx context.Context, req *backend.ListRequest) (backend.ListPage, error) {
	asking, cancel := answering(ctx)
	defer cancel()
	keys, _, err := b.client.KV().Keys(b.locksKey()+backend.EscapeSegment(req.Prefix), "", consistent(asking))
	if err != nil {
		return backend.ListPage{}, err
	}
	var names []string
	for _, k := range keys {
		seg, _, _ := strings.Cut(strings.TrimPrefix(k, b.locksKey()), "/")
		if lock, ok := backend.UnescapeSegment(seg); ok && lock > req.After && strings.HasPrefix(lock, req.Prefix) {
			names = append(names, lock)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	limit := req.Limit
	if limit == 0 {
		limit = backend.MaxListLimit
	}
	var page backend.ListPage
	for _, lock := range names {
		if len(page.Locks) == limit {
			page.Next = page.Locks[limit-1].Name
			break
		}
		l, err := b.look(ctx, lock)
		if err != nil {
			return backend.ListPage{}, err
		}
		if len(l.all) > 0 {
			page.Locks = append(page.Locks, describe(lock, l))
		}
	}
	return page, nil
}

// Watch returns ErrUnsupported: Consul reports the present state, not past changes.
func (b *Backend) Watch(ctx context.Context, req backend.WatchRequest, _ func(backend.Event)) error {
	if err := backend.ValidatePrefix(req.Prefix); err != nil {
		return err
	}
	ctx, done, err := b.sessions.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	return backend.ErrUnsupported
}
