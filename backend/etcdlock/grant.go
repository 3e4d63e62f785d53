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

// own returns the etcd lease that a grant lives on: the session's, one of the pool, or a new one.
// For a timed lease it sets a.asked such that the etcd lease lasts for the TTL from then on.
func (a *acquisition) own(ctx context.Context) (clientv3.LeaseID, error) {
	if !a.req.Timed {
		a.asked = time.Now()
		return a.on.lease, nil
	}
	if sharesLeases(a.req.TTL) {
		var err error
		if a.pool, a.asked, err = a.b.pools.take(ctx, a.req.TTL); err != nil {
			return clientv3.NoLease, err
		}
		a.term = a.pool.term
		return a.pool.id, nil
	}
	if a.lease != clientv3.NoLease && time.Since(a.fresh) < a.req.TTL/8 {
		a.asked = a.fresh // its TTL counts from then, however late the last request was sent
		return a.lease, nil
	}
	a.drop()
	a.fresh = time.Now()
	a.asked = a.fresh
	var err error
	a.lease, a.term, err = a.b.grantLease(ctx, a.req.TTL)
	return a.lease, err
}

// pooledID returns the etcd lease that own returned, if that is one of the pool.
func (a *acquisition) pooledID() clientv3.LeaseID {
	if a.pool == nil {
		return clientv3.NoLease
	}
	return a.pool.id
}

// commitOut commits a change that puts the entry on the etcd lease that own returned.
func (a *acquisition) commitOut(ctx context.Context, ch *change) (*pb.TxnResponse, int64, error) {
	if !a.req.Timed {
		return a.b.commits.commit(ctx, opAcquire, ch)
	}
	return a.b.commitPooled(ctx, opAcquire, a.pool, ch)
}

// commitPooled commits a change that puts an entry on a pooled etcd lease, if pl is not nil, and
// takes care of the key that ends with it.
func (b *Backend) commitPooled(ctx context.Context, op string, pl *pooled, ch *change) (*pb.TxnResponse, int64, error) {
	mark := b.pools.mark(pl)
	ch.then = append(ch.then, mark...)
	resp, rev, err := b.commits.commit(ctx, op, ch)
	if err != nil || !resp.Succeeded {
		b.pools.unmark(pl, mark)
	}
	if leaseGone(err) {
		b.pools.forget(pl)
	}
	return resp, rev, err
}

// drop gives up the etcd lease that was made for a grant that did not come about.
func (a *acquisition) drop() {
	a.b.revoker.revoke(a.lease)
	a.lease = clientv3.NoLease
}

// failed records that a change failed which was to put the entry on the etcd lease that own
// returned. That etcd lease is left to expire if the entry may be on it.
func (a *acquisition) failed(err error) {
	if !mayHold(err) && !leaseGone(err) {
		a.drop()
	}
	a.lease = clientv3.NoLease
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
	e, out := st.All[i], i < st.Out
	a.b.slots.stand(a.p, e.key, e.rev)
	switch {
	case out && e.timed() && e.Out:
		return a.outAgain(ctx, e)
	case out && !e.timed() && e.Session != string(a.req.Session):
		return backend.Grant{}, backend.ErrLost // it will die with the other session
	case out && !e.timed():
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
	case out:
		return a.out(ctx, e, false)
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
		then: a.puts(e.key, a.on.lease, e.record),
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
	r, again := a.b.moveTimed(ctx, e, ttlOf(e), e.Pooled)
	switch {
	case again != nil:
		return backend.Grant{}, a.uncertain(errDeposed)
	case r.Err != nil:
		return backend.Grant{}, a.uncertain(r.Err)
	}
	at, _ := a.b.slots.find(a.p.leaseKey)
	return a.grant(grantOf{rev: e.rev, left: r.Left, since: e.since(), pool: at.pool}), nil
}

// out turns an entry at the head of the queue into a grant. A timed lease first moves to an etcd
// lease outside the session: until then it lives with the session.
func (a *acquisition) out(ctx context.Context, e *entry, waited bool) (backend.Grant, error) {
	if !a.req.Timed {
		return a.grant(grantOf{rev: e.rev, waited: waited}), nil
	}
	defer a.drop()
	for n := 0; ; n++ {
		g, ok, err := a.detach(ctx, e, waited)
		if ok || final(err) && err != nil {
			return g, err
		}
		if err != nil && (denied(err) || !retry.Until(delay(n), ctx.Done(), a.sess.done)) {
			return backend.Grant{}, a.over(ctx, err)
		}
		// The lost answer may have been a success, or the same request from another caller may have
		// been faster: read the present state.
		again, err := a.reread(ctx, e)
		switch {
		case err != nil:
			if ctx.Err() != nil {
				return backend.Grant{}, a.over(ctx, err)
			}
		case again == nil:
			return backend.Grant{}, a.vanished(ctx)
		case again.Out:
			return a.outAgain(ctx, again)
		default:
			e = again
		}
	}
}

func (a *acquisition) reread(ctx context.Context, e *entry) (*entry, error) {
	resp, err := a.b.get(ctx, opAcquire, e.key)
	if err != nil {
		return nil, err
	}
	for _, kv := range resp.Kvs {
		if again := a.b.keys.decode(kv); again != nil && again.rev == e.rev {
			return again, nil
		}
	}
	return nil, nil //nolint:nilnil // a nil entry means that it is gone
}

// detach moves a granted entry from the session to an etcd lease outside it, whose TTL counts from
// now. It returns false if the entry has changed.
func (a *acquisition) detach(ctx context.Context, e *entry, waited bool) (backend.Grant, bool, error) {
	lease, err := a.own(ctx)
	if err != nil {
		return backend.Grant{}, false, err
	}
	r := e.record
	r.Out, r.Pooled, r.Term, r.TTL, r.Since = true, a.pool != nil, a.term, a.req.TTL.Milliseconds(), time.Now().UnixMilli()
	resp, _, err := a.commitOut(ctx, &change{
		name: a.req.Name,
		cmps: []clientv3.Cmp{created(e.key, e.rev), modified(e.key, e.mod)},
		then: a.puts(e.key, lease, r),
	})
	switch {
	case err != nil:
		a.failed(err)
		return backend.Grant{}, false, err
	case !resp.Succeeded:
		return backend.Grant{}, false, nil
	}
	a.lease = clientv3.NoLease
	return a.grant(grantOf{rev: e.rev, waited: waited, left: a.req.TTL, pool: a.pooledID()}), true, nil
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
	out := backend.Grant{Token: token(g.rev), Asked: a.asked, Since: g.since, Waited: g.waited}
	if a.req.Timed {
		out.Left = g.left
		a.b.slots.out(a.p, nil, a.req.TTL)
		a.b.slots.pooled(a.p.leaseKey, g.pool)
		return out
	}
	a.b.slots.out(a.p, a.sess, 0)
	if g.waited {
		a.b.markSince(a.p, g.rev)
	}
	return out
}
