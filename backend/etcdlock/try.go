package etcdlock

import (
	"context"

	"github.com/holdfast-io/holdfast/backend"
)

// try takes the lock if it is free. If it returns neither a grant nor an error, the state is the
// reason, and no entry is left behind.
func (a *acquisition) try(ctx context.Context) (backend.Grant, *state, error) {
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
		if f.rev >= 0 && !f.st.Admits(a.req.Claim()) {
			return backend.Grant{}, &f.st, nil
		}
		g, next, err := a.tryOnce(ctx, f)
		if err != nil || next == nil {
			return g, nil, err
		}
		f = *next
	}
}

// tryOnce sends the transaction that takes the lock if it is as f says, or, where f says nothing
// yet, if nothing is in the way at all.
func (a *acquisition) tryOnce(ctx context.Context, f found) (backend.Grant, *found, error) {
	a.step()
	h, err := a.home(ctx)
	if err != nil {
		return backend.Grant{}, nil, err
	}
	r := a.record()
	if a.req.Timed {
		r = h.record(r, a.req.TTL)
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
	a.asked = h.asked
	resp, rev, err := a.b.commitAt(ctx, opAcquire, h, &change{
		name: a.req.Name, cmps: cmps, then: a.puts(key, h.id, r),
	})
	switch {
	case err != nil:
		if leaseGone(err) && a.req.Timed { // it took longer than the TTL
			return backend.Grant{}, &f, context.Cause(ctx)
		}
		return backend.Grant{}, nil, err
	case !resp.Succeeded:
		next, err := a.see(ctx)
		return backend.Grant{}, &next, err
	}
	a.b.slots.stand(a.p, key, rev)
	return a.grant(grantOf{rev: rev, left: a.req.TTL, pool: h.shared()}), nil, nil
}
