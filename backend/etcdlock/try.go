package etcdlock

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
)

// try takes the lock if it is free. If it returns neither a grant nor an error, the state is the
// reason, and no entry is left behind.
func (a *acquisition) try(ctx context.Context) (backend.Grant, *state, error) {
	// This avoids an etcd lease made for nothing. If other leases of this value hold the lock or
	// wait for it, it is read first, too.
	read := a.req.Timed && (!sharesLeases(a.req.TTL) || a.b.slots.shares(a.p))
	for f := (found{}); ; read = true {
		if read {
			var err error
			if f, err = a.see(ctx); err != nil {
				return backend.Grant{}, nil, err
			}
			if f.claimed {
				g, err := a.again(ctx)
				return g, nil, err
			}
			if !f.st.Admits(a.req.Claim()) {
				return backend.Grant{}, &f.st, nil
			}
		}
		g, ok, err := a.tryOnce(ctx, f)
		if ok || err != nil {
			return g, nil, err
		}
	}
}

// tryOnce sends the transaction that takes the lock if it is as f says, or, where nothing was read
// yet, if nothing is in the way at all. It returns false if that was not so.
func (a *acquisition) tryOnce(ctx context.Context, f found) (backend.Grant, bool, error) {
	a.step()
	h, err := a.home(ctx)
	if err != nil {
		return backend.Grant{}, false, err
	}
	r := a.record()
	if a.req.Timed {
		r = h.record(r, a.req.TTL)
	}
	var key string
	var cmps []clientv3.Cmp
	switch {
	case f.rev > 0:
		key, cmps = a.key(), append(a.guards(), a.b.keys.entries(a.req.Name).unchanged(f.rev))
	case a.req.Mode == backend.Exclusive:
		// An entry at the head: there is no other entry and no tombstone, which is a single comparison.
		key, cmps = a.b.keys.head(a.req.Name), append(a.alive(), a.b.keys.untouched(a.req.Name).empty())
	default:
		key, cmps = a.key(), append(a.guards(), a.clear()...)
	}
	a.asked = h.asked
	resp, rev, err := a.b.commitAt(ctx, opAcquire, h, &change{
		name: a.req.Name, cmps: cmps, then: a.b.puts(a.p.leaseKey, key, h.id, r),
	})
	if err != nil || !resp.Succeeded {
		if leaseGone(err) && a.req.Timed { // it took longer than the TTL
			err = context.Cause(ctx)
		}
		return backend.Grant{}, false, err
	}
	a.b.slots.stand(a.p, key, rev)
	return a.grant(grantOf{rev: rev, left: a.req.TTL, pool: h.shared()}), true, nil
}
