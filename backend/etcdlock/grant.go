package etcdlock

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// home is the etcd lease that an entry is put on when its lease is granted.
type home struct {
	id    clientv3.LeaseID
	asked time.Time // from then on it lasts for the TTL
	term  uint64    // see sessionLease
	own   bool      // it was made for this timed lease
	pool  *pooled   // that timed leases share it; nil: none
}

// home returns an etcd lease for a timed lease.
func (b *Backend) home(ctx context.Context, ttl time.Duration, share bool) (home, error) {
	if share {
		pl, asked, err := b.pools.take(ctx, poolLife(ttl), ttl)
		if err != nil {
			return home{}, err
		}
		return home{id: pl.id, asked: asked, term: pl.term, pool: pl}, nil
	}
	h := home{asked: time.Now(), own: true}
	var err error
	h.id, h.term, err = b.grantLease(ctx, ttl)
	return h, err
}

// shared returns the etcd lease if timed leases share it, else NoLease.
func (h *home) shared() clientv3.LeaseID {
	if h.pool == nil {
		return clientv3.NoLease
	}
	return h.id
}

// record returns the record of a timed lease that is put there.
func (h *home) record(r record, ttl time.Duration) record {
	r.TTL, r.Out, r.Pooled, r.Moving, r.Term = ttl.Milliseconds(), true, h.pool != nil, false, h.term
	return r
}

// commitAt commits a change that puts an entry on an etcd lease. It takes care of the key that ends with
// one that is shared, and of one that was made for nothing.
func (b *Backend) commitAt(ctx context.Context, op string, h home, ch *change) (*pb.TxnResponse, int64, error) {
	var mark []clientv3.Op
	if h.pool != nil {
		mark = b.keys.mark(h.pool)
		ch.then = append(ch.then, mark...)
	}
	resp, rev, err := b.commits.commit(ctx, op, ch)
	if err == nil && resp.Succeeded {
		return resp, rev, nil
	}
	if len(mark) > 0 {
		h.pool.marker.Store(false) // the key was perhaps not put
	}
	if h.pool != nil && leaseGone(err) {
		h.pool.gone.Store(true)
	}
	if h.own && !mayHold(err) { // otherwise the entry may be on it: it is left to expire
		b.revoke(h.id)
	}
	return resp, rev, err
}

// home returns the etcd lease that a grant lives on: the session's, or that of a timed lease.
func (a *acquisition) home(ctx context.Context) (home, error) {
	if !a.req.Timed {
		return home{id: a.on.lease, asked: time.Now()}, nil
	}
	return a.b.home(ctx, a.req.TTL, sharesLeases(a.req.TTL))
}

// again answers a request whose lease has an entry, or had one: C6.
func (a *acquisition) again(ctx context.Context) (backend.Grant, error) {
	a.asked = time.Now()
	st, rev, err := a.b.read(ctx, a.req.Name)
	if err != nil {
		return backend.Grant{}, a.uncertain(err)
	}
	i := st.Find(a.req.Lease)
	if i < 0 {
		return backend.Grant{}, a.vanished(ctx)
	}
	e, held := st.All[i], i < st.Out
	a.b.slots.stand(a.p, e.key, e.rev)
	switch {
	case held && e.timed() && e.Out:
		return a.outAgain(ctx, e)
	case held && !e.timed() && e.Session != string(a.req.Session):
		return backend.Grant{}, backend.ErrLost // it will die with the other session
	case held && !e.timed():
		return a.grant(grantOf{rev: e.rev, since: e.since()}), nil
	}
	if a.sess == nil {
		return backend.Grant{}, a.held(ctx, st, len(st.All))
	}
	if e.Session != string(a.req.Session) {
		adopted, err := a.adopt(ctx, e)
		if err != nil {
			return backend.Grant{}, err
		}
		if !adopted {
			if err := a.vanished(ctx); !errors.Is(err, backend.ErrLost) {
				return backend.Grant{}, err
			}
			return a.again(ctx) // it was granted, or adopted by another caller
		}
	}
	switch {
	case held:
		return a.promote(ctx, e, false)
	case !a.req.Wait:
		return backend.Grant{}, a.held(ctx, st, i)
	}
	return a.wait(ctx, e.rev, verdict{need: needOf(&st, i), rev: rev})
}

// adopt moves an entry in the queue to the session of the request. It returns false if the entry, or
// the session, has changed.
func (a *acquisition) adopt(ctx context.Context, e *entry) (bool, error) {
	e.Session = string(a.req.Session)
	a.step()
	resp, rev, err := a.b.commits.commit(ctx, opAcquire, &change{
		name: a.req.Name,
		cmps: append(a.alive(), created(e.key, e.rev), modified(e.key, e.mod)),
		then: a.b.puts(a.p.leaseKey, e.key, a.on.lease, e.record),
	})
	if err != nil || !resp.Succeeded {
		return false, err
	}
	e.mod, e.lease = rev, a.on.lease
	return true, nil
}

// outAgain returns the grant of a timed lease that is already held.
func (a *acquisition) outAgain(ctx context.Context, e *entry) (backend.Grant, error) {
	rctx, cancel := a.b.request(ctx)
	defer cancel()
	a.asked = time.Now()
	resp, err := a.b.client.TimeToLive(rctx, e.lease)
	if leaseGone(err) || err == nil && resp.TTL < 0 {
		return backend.Grant{}, backend.ErrLost
	}
	if err != nil {
		return backend.Grant{}, a.uncertain(fail(ctx, opAcquire, err, true))
	}
	a.b.saw(resp.RaftTerm)
	if e.Term < resp.RaftTerm {
		return a.onNew(ctx, e)
	}
	// etcd rounds down to seconds: in its last second a lease has next to nothing left.
	left := max(leftOf(e, time.Duration(resp.TTL)*time.Second), time.Millisecond)
	g := grantOf{rev: e.rev, left: left, since: e.since()}
	if e.Pooled {
		g.pool = e.lease
	}
	return a.grant(g), nil
}

// onNew returns the grant of a timed lease that has been held since before etcd had its present
// leader. The leader before may end the lease when it has expired by that leader's clock. So the
// lease moves, and its time begins again.
func (a *acquisition) onNew(ctx context.Context, e *entry) (backend.Grant, error) {
	a.asked = time.Now()
	r, moved := a.b.moveTimed(ctx, e, ttlOf(e), e.Pooled)
	switch {
	case !moved:
		return backend.Grant{}, a.uncertain(errOvertaken)
	case r.Err != nil:
		return backend.Grant{}, a.uncertain(r.Err)
	}
	at, _ := a.b.slots.find(a.p.leaseKey)
	return a.grant(grantOf{rev: e.rev, left: r.Left, since: e.since(), pool: at.pool}), nil
}

// promote turns an entry at the head of the queue into a grant. A timed lease first moves to an etcd
// lease outside the session: until then it lives with the session.
func (a *acquisition) promote(ctx context.Context, e *entry, waited bool) (backend.Grant, error) {
	if !a.req.Timed {
		return a.grant(grantOf{rev: e.rev, waited: waited}), nil
	}
	for n := 0; ; n++ {
		g, ok, err := a.detach(ctx, e, waited)
		if ok || final(err) && err != nil {
			return g, err
		}
		if err != nil && (denied(err) || !retry.Until(delay(n), ctx.Done(), a.sess.life.Done())) {
			return backend.Grant{}, a.over(ctx, err)
		}
		// The lost answer may have been a success, or the same request from another caller may have
		// been faster: read the present state.
		es, err := a.b.lookup(ctx, []leaseKey{a.p.leaseKey})
		switch {
		case err != nil:
			if ctx.Err() != nil {
				return backend.Grant{}, a.over(ctx, err)
			}
		case es[0] == nil || es[0].rev != e.rev:
			return backend.Grant{}, a.vanished(ctx)
		case es[0].Out:
			return a.outAgain(ctx, es[0])
		default:
			e = es[0]
		}
	}
}

// detach moves a granted entry from the session to an etcd lease outside it, whose TTL counts from
// now. It returns false if the entry has changed.
func (a *acquisition) detach(ctx context.Context, e *entry, waited bool) (backend.Grant, bool, error) {
	h, err := a.home(ctx)
	if err != nil {
		return backend.Grant{}, false, err
	}
	r := h.record(e.record, a.req.TTL)
	r.Since = time.Now().UnixMilli()
	resp, _, err := a.b.commitAt(ctx, opAcquire, h, &change{
		name: a.req.Name,
		cmps: []clientv3.Cmp{created(e.key, e.rev), modified(e.key, e.mod)},
		then: a.b.puts(a.p.leaseKey, e.key, h.id, r),
	})
	if err != nil || !resp.Succeeded {
		return backend.Grant{}, false, err
	}
	a.asked = h.asked
	return a.grant(grantOf{rev: e.rev, waited: waited, left: a.req.TTL, pool: h.shared()}), true, nil
}

// grantOf is what a grant is made of.
type grantOf struct {
	rev    int64 // create revision of the entry
	waited bool
	left   time.Duration
	pool   clientv3.LeaseID // of a timed lease that shares one
	since  time.Time        // zero: now
}

// grant records a lease that is held, and builds the answer.
func (a *acquisition) grant(g grantOf) backend.Grant {
	if g.since.IsZero() {
		g.since = time.Now()
	}
	granted := backend.Grant{Token: token(g.rev), Asked: a.asked, Since: g.since, Waited: g.waited}
	if a.req.Timed {
		granted.Left = g.left
		a.b.slots.timed(a.p.leaseKey, a.req.TTL, g.pool)
		return granted
	}
	a.b.slots.held(a.p, a.sess)
	return granted
}
