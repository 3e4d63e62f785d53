package consullock

import (
	"context"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/seqlock"
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
	info, err := b.inspect(ctx, lock)
	return info, b.fail(ctx, opInspect, err, false)
}

func (b *Backend) inspect(ctx context.Context, lock string) (backend.LockInfo, error) {
	q, err := b.look(ctx, lock)
	if err != nil {
		return backend.LockInfo{}, err
	}
	return describe(lock, q), nil
}

func describe(lock string, q queue) backend.LockInfo {
	return q.Describe(lock, func(i int) (backend.Holder, bool) {
		e := &q.All[i]
		return backend.Holder{
			Session: e.Session, Owner: e.Owner, Note: e.Note, Token: fence.Token(e.created), Since: time.Unix(0, e.Since),
		}, true
	})
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
	var segments []string
	for _, k := range keys {
		segment, _, _ := strings.Cut(strings.TrimPrefix(k, b.locksKey()), "/")
		segments = append(segments, segment)
	}
	return seqlock.Page(ctx, req, segments, b.inspect)
}

// Watch returns ErrUnsupported: Consul reports the present state, not past changes.
func (b *Backend) Watch(ctx context.Context, req backend.WatchRequest, _ func(backend.Event)) error {
	if err := backend.ValidatePrefix(req.Prefix); err != nil {
		return err
	}
	_, done, err := b.sessions.Begin(ctx)
	if err != nil {
		return err
	}
	done()
	return backend.ErrUnsupported
}
