package etcdlock

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
)

// try takes the lock if it is free. If it returns neither a grant nor an error, the state is the
// reason, and no entry is left behind.
func (a *acquisition) try(ctx context.Context) (backend.Grant, *state, error) {
	defer a.drop()
	f := found{rev: -1}
	// This avoids an etcd lease made for nothing. If other leases of this value hold the lock or
	// wait for it, it is read first, too.
	if a.req.Timed && (!sharesLeases(a.req.TTL) || a.b.slots.shares(a.p)) {
		var err error
		if f, err = a.see(ctx); err != nil {
			return backend.Grant{}, nil, err
		}
	}
	for {
		if f.claimed {
			g, err := a.again(ctx)
			return g, nil, err
		}
		if f.rev >= 0 {
			var err error
			if f, err = a.complete(ctx, f); err != nil {
				return backend.Grant{}, nil, err
			}
			if !f.st.admits(a.claim) {
				return backend.Grant{}, &f.st, nil
			}
		}
		g, next, err := a.tryOnce(ctx, f)
		if err != nil || next == nil {
			return g, nil, err
		}
		f = *next
	}
}

// decide evaluates a long queue without reading all of it: a claim that thousands of readers refuse
// costs no more than one that a single reader refuses. It returns false where the permits of all
// entries decide.
//
// The result is of one revision. Only a queue of nothing but readers admits a claim that is judged
// by the front of it.
func (a *acquisition) decide(ctx context.Context) (found, bool, error) {
	k, lock := a.b.keys, a.req.Name
	resp, err := a.b.txn(ctx, opAcquire, false, nil, []clientv3.Op{
		k.exclusive(lock).get(clientv3.WithLimit(1), clientv3.WithKeysOnly()),
		k.entries(lock).get(clientv3.WithLimit(glance)),
	}, nil)
	if err != nil {
		return found{}, false, err
	}
	get := func(i int) *pb.RangeResponse { return resp.Responses[i].GetResponseRange() }
	f := found{rev: resp.Header.Revision, all: true, st: judge(k.decodeAll(get(1).Kvs))}
	total := int(get(1).Count)
	if total <= glance { // it has become short
		return f, true, nil
	}
	readers := get(0).Count == 0
	limit, _ := backend.LimitInForce(claims(f.st.holders), claims(f.st.queue))
	switch {
	case readers && limit == 0: // all of them are held
		f.st.out = total
		return f, true, nil
	case readers && a.req.Mode == backend.Shared && total < limit:
		return f, false, nil
	}
	// The claim is refused: by an exclusive lease, wherever that stands; by shared ones if the
	// claim is exclusive; or because each of the others has a permit. The holders are at the head.
	head, err := a.b.get(ctx, opAcquire, k.entries(lock).from, clientv3.WithRange(k.entries(lock).to), clientv3.WithRev(f.rev),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(glance))
	if err != nil {
		return found{}, false, err
	}
	f.st = judge(k.decodeAll(head.Kvs))
	f.st.refused, f.st.out = true, len(f.st.holders)
	if len(f.st.queue) == 0 { // there are more; readers behind a writer and permits are not counted
		f.st.out = total - int(get(0).Count)
		if limit > 0 {
			f.st.out = min(f.st.out, limit)
		}
	}
	f.st.ahead = total - f.st.out
	return f, true, nil
}

// tryOnce sends the transaction that takes the lock if it is as f says, or, where f says nothing
// yet, if nothing is in the way at all.
func (a *acquisition) tryOnce(ctx context.Context, f found) (backend.Grant, *found, error) {
	a.step()
	lease, err := a.own(ctx)
	if err != nil {
		return backend.Grant{}, nil, err
	}
	key, cmps := a.key(), a.guards()
	ahead := a.req.Mode == backend.Exclusive && f.rev < 0 // a caller that has read the queue may have seen a tombstone
	switch {
	case ahead:
		key, cmps = a.b.keys.head(a.req.Name), a.ahead()
	case f.rev < 0:
		cmps = append(cmps, a.clear()...)
	default:
		cmps = append(cmps, a.b.keys.entries(a.req.Name).unchanged(f.rev))
	}
	resp, rev, err := a.commitOut(ctx, &change{
		name: a.req.Name, cmps: cmps, then: a.puts(key, lease, a.record(true)),
	})
	switch {
	case err != nil:
		a.failed(err)
		if leaseGone(err) && a.req.Timed { // it took longer than the TTL
			return backend.Grant{}, &f, context.Cause(ctx)
		}
		return backend.Grant{}, nil, err
	case !resp.Succeeded:
		next, err := a.see(ctx)
		return backend.Grant{}, &next, err
	}
	a.lease = clientv3.NoLease // it is the entry's now
	a.b.slots.stand(a.p, key, rev)
	return a.grant(grantOf{rev: rev, left: a.req.TTL, pool: a.pooledID()}), nil, nil
}
