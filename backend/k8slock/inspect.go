package k8slock

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/lockstate"
)

// describe returns the state of a lock.
func (r *record) describe() backend.LockInfo {
	claims, n := r.claims(), r.out()
	info := backend.LockInfo{Name: r.Name, Token: r.Last, Limit: backend.InfoLimit(claims[:n], claims[n:])}
	if r.foreign {
		info.Limit = 1
		h := backend.Holder{Owner: clip(r.object.Spec.HolderIdentity, backend.MaxOwnerLen), Note: "a leader election of client-go", Permits: 1}
		if t := r.object.Spec.AcquireTime; t != nil {
			h.Since = t.Time
		}
		info.Holders = append(info.Holders, h)
	}
	for _, e := range r.Queue {
		if e.Token == 0 {
			info.Waiters = append(info.Waiters, backend.Waiter{
				Lease: e.Lease, Session: e.Session, Owner: e.Owner, Note: e.Note, Mode: e.Mode,
				Permits: max(1, e.Permits), Since: time.UnixMilli(e.Asked),
			})
			continue
		}
		info.Holders = append(info.Holders, backend.Holder{
			Lease: e.Lease, Session: e.Session, Owner: e.Owner, Note: e.Note, Mode: e.Mode,
			Permits: max(1, e.Permits), Token: e.Token, Since: time.UnixMilli(e.Granted),
		})
	}
	return info
}

// clip shortens what other programs wrote.
func clip(s string, most int) string { return strings.ToValidUTF8(s[:min(len(s), most)], "") }

// Inspect returns the holders of the lock and its waiters. Holder.Left is 0, because it depends on
// other processes' clocks. Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Inspect(ctx context.Context, lock string) (backend.LockInfo, error) {
	if err := backend.ValidateName(lock); err != nil {
		return backend.LockInfo{}, err
	}
	ctx, cancel, err := backend.Begin(ctx, b.base)
	if err != nil {
		return backend.LockInfo{}, err
	}
	defer cancel()
	free, err := b.slot(ctx, nil)
	defer free()
	if err != nil {
		return backend.LockInfo{}, b.fail(ctx, opInspect, err, false)
	}
	asking, done := backend.WithTimeout(ctx, attempt)
	defer done()
	o, err := b.rest.get(asking, objectName(lock))
	if isStatus(err, http.StatusNotFound) {
		return backend.LockInfo{Name: lock}, nil
	}
	if err != nil {
		return backend.LockInfo{}, b.fail(ctx, opInspect, err, false)
	}
	b.learn(o)
	info, err := view(lock, o, func(id backend.SessionID) (bool, error) { return b.lives(asking, id, true) })
	return info, b.fail(ctx, opInspect, err, false)
}

// view returns the state of a lock without the entries of sessions that no longer exist.
func view(lock string, o *object, lives func(backend.SessionID) (bool, error)) (backend.LockInfo, error) {
	r, err := open(lock, o)
	if err != nil {
		return backend.LockInfo{}, err
	}
	if err := r.dropDead(lives); err != nil {
		return backend.LockInfo{}, err
	}
	return r.describe(), nil
}

// List returns the locks that are held or waited for, by name. It reads all of the namespace.
// Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	if err := req.Validate(); err != nil {
		return backend.ListPage{}, err
	}
	ctx, cancel, err := backend.Begin(ctx, b.base)
	if err != nil {
		return backend.ListPage{}, err
	}
	defer cancel()
	free, err := b.slot(ctx, nil)
	defer free()
	if err != nil {
		return backend.ListPage{}, b.fail(ctx, opList, err, false)
	}
	asking, done := backend.WithTimeout(ctx, attempt)
	defer done()
	objects, _, err := b.rest.list(asking)
	if err != nil {
		return backend.ListPage{}, b.fail(ctx, opList, err, false)
	}
	page, err := pageOf(&req, objects)
	return page, b.fail(ctx, opList, err, false)
}

// pageOf returns a page of the locks among the objects of the namespace.
func pageOf(req *backend.ListRequest, objects []*object) (backend.ListPage, error) {
	var locks []*seen
	live := make(map[backend.SessionID]bool)
	for _, o := range objects {
		if s := read(o); s.session != nil {
			live[s.session.ID] = true
		} else if s.lock > req.After && strings.HasPrefix(s.lock, req.Prefix) {
			locks = append(locks, s)
		}
	}
	slices.SortFunc(locks, func(a, b *seen) int { return cmp.Compare(a.lock, b.lock) })
	return lockstate.Page(req.Size(), locks, func(s *seen) (backend.LockInfo, error) {
		return view(s.lock, s.object, func(id backend.SessionID) (bool, error) { return live[id], nil })
	})
}

// Watch returns ErrUnsupported: a watch of Kubernetes may skip versions when it starts again.
func (b *Backend) Watch(ctx context.Context, req backend.WatchRequest, _ func(backend.Event)) error {
	if err := backend.ValidatePrefix(req.Prefix); err != nil {
		return err
	}
	_, cancel, err := backend.Begin(ctx, b.base)
	if err != nil {
		return err
	}
	cancel()
	return backend.ErrUnsupported
}
