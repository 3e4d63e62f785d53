package etcdlock

import (
	"cmp"
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	// heldTold is for how many holders a *HeldError says how much time they have left.
	heldTold = 4
	// leftAtOnce is how many etcd leases are asked concurrently for the time they have left.
	leftAtOnce = 16
	// listPage is how many keys one request reads.
	listPage = 1000
)

// Inspect returns the holders of the lock and its waiters. Holders' times are in whole seconds,
// rounded down. Since, of a lease of a session, is when it was requested: a grant writes nothing.
//
// Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Inspect(ctx context.Context, lock string) (backend.LockInfo, error) {
	ctx, leave, err := b.enter(ctx, backend.ValidateName(lock))
	if err != nil {
		return backend.LockInfo{}, err
	}
	defer leave()
	st, _, err := b.read(ctx, lock)
	if err != nil {
		return backend.LockInfo{}, err
	}
	return info(lock, st, b.lefts(ctx, st.Holders().All)), nil
}

// info describes a lock.
func info(lock string, st state, left map[clientv3.LeaseID]time.Duration) backend.LockInfo {
	return st.Describe(lock, func(i int) (backend.Holder, bool) { return holder(st.All[i], left), true })
}

// holder describes a lease. A timed one belongs to no session once it was granted.
func holder(e *entry, left map[clientv3.LeaseID]time.Duration) backend.Holder {
	h := backend.Holder{
		Lease: e.LeaseID(), Session: backend.SessionID(e.Session), Owner: e.Owner, Note: e.Note, Mode: e.mode(),
		Permits: e.Claim().Permits, Token: e.token(), Since: e.since(), Left: left[e.lease],
	}
	if e.timed() {
		h.Left = max(0, leftOf(e, h.Left))
	}
	if e.Out {
		h.Session = ""
	}
	return h
}

// holders describes leases that are held, the first withLeft of them with the time left.
func (b *Backend) holders(ctx context.Context, es []*entry, withLeft int) []backend.Holder {
	left := b.lefts(ctx, es[:min(len(es), withLeft)])
	hs := make([]backend.Holder, len(es))
	for i := range es {
		hs[i] = holder(es[i], left)
	}
	return hs
}

// lefts asks how much time the etcd leases of the entries have left. Unknown times are omitted,
// because they are only for people.
func (b *Backend) lefts(ctx context.Context, es []*entry) map[clientv3.LeaseID]time.Duration {
	left := make(map[clientv3.LeaseID]time.Duration, len(es))
	for i := range es {
		left[es[i].lease] = 0
	}
	ctx, cancel := b.request(ctx)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	ids := make(chan clientv3.LeaseID, len(left))
	for id := range left {
		ids <- id
	}
	close(ids)
	for range min(len(left), leftAtOnce) {
		wg.Go(func() {
			for id := range ids {
				resp, err := b.client.TimeToLive(ctx, id)
				if err != nil || resp.TTL <= 0 {
					continue
				}
				mu.Lock()
				left[id] = time.Duration(resp.TTL) * time.Second
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return left
}

// List returns the locks that are held or waited for, in order of their names, as of one revision.
//
// Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	ctx, leave, err := b.enter(ctx, req.Validate())
	if err != nil {
		return backend.ListPage{}, err
	}
	defer leave()
	sp := b.keys.locks(req.Prefix)
	if req.After != "" {
		sp.from = max(sp.from, b.keys.after(req.After))
	}
	var locks [][]*entry
	page := backend.ListPage{}
	_, err = b.scan(ctx, "list", sp, func(e *entry) bool {
		last := len(locks) - 1
		if last >= 0 && locks[last][0].name == e.name {
			locks[last] = append(locks[last], e)
			return true
		}
		if len(locks) == req.Size() {
			page.Next = locks[last][0].name
			return false
		}
		locks = append(locks, []*entry{e})
		return true
	})
	if err != nil {
		return backend.ListPage{}, err
	}
	states := make([]state, len(locks))
	var holders []*entry
	for i := range locks {
		states[i] = judge(locks[i])
		holders = append(holders, states[i].Holders().All...)
	}
	left := b.lefts(ctx, holders)
	for _, st := range states {
		page.Locks = append(page.Locks, info(st.All[0].name, st, left))
	}
	return page, nil
}

// scan reads the entries of locks, in the order of their keys and all as of one revision, which it returns, until each
// returns false.
func (b *Backend) scan(ctx context.Context, op string, sp span, each func(*entry) bool) (int64, error) {
	rev := int64(0) // the newest
	for sp.from < sp.to {
		r, err := b.get(ctx, op, sp.from, clientv3.WithRange(sp.to), clientv3.WithLimit(listPage), clientv3.WithRev(rev))
		if err != nil {
			return 0, err
		}
		rev = cmp.Or(rev, r.Header.Revision)
		for _, e := range b.keys.decodeAll(r.Kvs) {
			if !each(e) {
				return rev, nil
			}
		}
		if !r.More {
			break
		}
		sp.from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
	return rev, nil
}
