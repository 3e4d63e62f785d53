package etcdlock

import (
	"context"
	"strings"
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

// List returns the locks that are held or waited for, in order of their names. A page does not show
// a single moment, but each lock on it does.
//
// Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	ctx, leave, err := b.enter(ctx, req.Validate())
	if err != nil {
		return backend.ListPage{}, err
	}
	defer leave()
	found, more, err := b.list(ctx, req.Prefix, req.After, req.Size())
	if err != nil {
		return backend.ListPage{}, err
	}
	var holders []*entry
	for i := range found {
		holders = append(holders, found[i].st.Holders().All...)
	}
	left := b.lefts(ctx, holders)
	page := backend.ListPage{}
	for i := range found {
		page.Locks = append(page.Locks, info(found[i].name, found[i].st, left))
	}
	if more {
		page.Next = found[len(found)-1].name
	}
	return page, nil
}

type namedState struct {
	name string
	st   state
}

// list reads limit locks, and reports whether there are more.
func (b *Backend) list(ctx context.Context, prefix, after string, limit int) ([]namedState, bool, error) {
	sp := b.keys.locks(prefix)
	if after != "" {
		sp.from = max(sp.from, b.keys.after(after))
	}
	var found []namedState
	for sp.from < sp.to {
		r, err := b.get(ctx, "list", sp.from, clientv3.WithRange(sp.to), clientv3.WithLimit(listPage))
		if err != nil {
			return nil, false, err
		}
		groups := group(b.keys.decodeAll(r.Kvs))
		if r.More && len(groups) > 0 {
			// The rest of the last lock may be on the next page: the lock is read whole.
			last := &groups[len(groups)-1]
			st, _, err := b.read(ctx, last.name)
			if err != nil {
				return nil, false, err
			}
			last.st = st
			sp.from = b.keys.after(last.name)
		} else if r.More {
			sp.from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
		}
		for _, g := range groups {
			if g.st.Out == 0 {
				continue
			}
			if len(found) == limit {
				return found, true, nil
			}
			found = append(found, g)
		}
		if !r.More {
			break
		}
	}
	return found, false, nil
}

// group judges entries that are in order of their locks.
func group(es []*entry) []namedState {
	var groups []namedState
	for len(es) > 0 {
		n := 1
		for n < len(es) && strings.Compare(es[n].name, es[0].name) == 0 {
			n++
		}
		groups = append(groups, namedState{es[0].name, judge(es[:n:n])})
		es = es[n:]
	}
	return groups
}
