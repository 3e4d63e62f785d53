package etcdlock

import (
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

const opAcquire = "acquire"

// acquisition is one call of Acquire.
type acquisition struct {
	b      *Backend
	req    backend.AcquireRequest
	sess   *session      // nil: none
	on     *sessionLease // of sess: the session lease that the next change is made on
	p      *placed
	claimK string
	tomb   string
	asked  time.Time // taken before the newest request was sent
}

// Acquire takes the lock, or waits for it in the queue. If ctx ends while it waits, the place in
// the queue stays for as long as the session lives.
//
// Errors: *InvalidError, *LimitError, *HeldError, ErrLost, ErrSessionLost, *UnavailableError,
// ErrClosed, ctx's cause.
func (b *Backend) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	ctx, leave, err := b.enter(ctx, req.Validate(b.caps))
	if err != nil {
		return backend.Grant{}, err
	}
	defer leave()
	a := &acquisition{
		b: b, req: req,
		claimK: b.keys.claim(req.Name, req.Lease),
		tomb:   b.keys.tombstone(req.Name, req.Lease),
	}
	if req.Session != "" {
		if a.sess, err = b.session(ctx, req.Session); err != nil {
			return backend.Grant{}, err
		}
	}
	a.p = b.slots.take(leaseKey{req.Name, req.Lease}, a.sess)
	g, err := a.run(ctx)
	if noSpace(err) {
		g, err = a.afterNoSpace(ctx, err)
	}
	over := final(err) && !backend.IsCause(ctx, err)
	if !over {
		b.inDoubt.Add(req.Lease)
	}
	// A lease that gets ErrHeld may still be in the queue, from an earlier call.
	b.slots.leave(a.p, err != nil && over, errors.Is(err, backend.ErrHeld))
	return g, err
}

// key returns the key of the entry, unless that is at the head.
func (a *acquisition) key() string {
	return a.b.keys.entry(a.req.Name, a.p.slot, a.req.Mode, a.req.Limit)
}

// run tries to take the lock, and joins the queue where trying is not enough.
func (a *acquisition) run(ctx context.Context) (backend.Grant, error) {
	if a.req.Wait && !a.req.Timed {
		return a.enqueue(ctx)
	}
	g, st, err := a.try(ctx)
	if err != nil || st == nil {
		return g, err
	}
	if a.req.Wait {
		return a.enqueue(ctx)
	}
	return backend.Grant{}, a.held(ctx, *st, len(st.All))
}

// afterNoSpace determines the outcome of a request for which etcd had no space. The request may
// have been done, but because it was answered it will not be done later.
func (a *acquisition) afterNoSpace(ctx context.Context, cause error) (backend.Grant, error) {
	f, err := a.see(ctx)
	switch {
	case final(err) && err != nil:
		return backend.Grant{}, err
	case err != nil:
		return backend.Grant{}, cause
	case f.claimed:
		return a.again(ctx)
	}
	return backend.Grant{}, &backend.UnavailableError{Backend: name, Op: opAcquire, Err: rpctypes.ErrNoSpace}
}

// held returns the error of a request that has so many entries before it and does not wait.
func (a *acquisition) held(ctx context.Context, st state, ahead int) error {
	return seqlock.Refuse(ctx, a, &a.req, st, ahead)
}

// Describe implements seqlock.Describer.
func (a *acquisition) Describe(ctx context.Context, holders state) ([]backend.Holder, error) {
	return a.b.holders(ctx, holders.All, heldTold), nil
}

// guards returns the conditions of every change that makes an entry with a claim. In addition, the
// entry at the head must not be that of the lease.
func (a *acquisition) guards() []clientv3.Cmp {
	cmps := []clientv3.Cmp{absent(a.claimK), absent(a.tomb), absent(a.key())}
	cmps = append(cmps, a.alive()...)
	if a.req.Mode == backend.Shared {
		below, above := a.b.keys.otherLimits(a.req.Name, a.req.Limit)
		cmps = append(cmps, below.empty(), above.empty())
	}
	return cmps
}

// found is what see read.
type found struct {
	claimed bool // the lease has an entry, or had one
	st      state
	rev     int64 // 0: nothing was read
}

// see reads why a transaction did nothing, and returns the reason why the lease cannot be acquired, if
// there is one. That is not read in the transaction itself: etcd applies one transaction at a time, and
// reads slowly in one that may write. A slot that turns out to be taken is replaced with another.
func (a *acquisition) see(ctx context.Context) (found, error) {
	session := a.tomb // read instead of the session's key where there is no session
	if a.sess != nil {
		session = a.b.keys.session(a.sess.id)
	}
	resp, err := a.b.txn(ctx, opAcquire, false, nil, []clientv3.Op{
		clientv3.OpGet(a.claimK, clientv3.WithKeysOnly()), clientv3.OpGet(a.tomb, clientv3.WithKeysOnly()),
		clientv3.OpGet(session, clientv3.WithKeysOnly()), a.b.keys.entries(a.req.Name).get(),
	})
	if err != nil {
		return found{}, err
	}
	get := func(i int) []*mvccpb.KeyValue { return resp.Responses[i].GetResponseRange().Kvs }
	f := found{rev: resp.Header.Revision, st: judge(a.b.keys.decodeAll(get(3)))}
	f.claimed = len(get(0)) > 0 || f.st.Find(a.req.Lease) >= 0
	switch {
	case f.claimed:
		return f, nil
	case len(get(1)) > 0:
		return f, backend.ErrLost
	case a.sess != nil && len(get(2)) == 0:
		a.b.end(a.sess, true)
		return f, backend.ErrSessionLost
	}
	if slices.ContainsFunc(f.st.All, func(e *entry) bool { return e.key == a.key() }) {
		a.b.slots.move(a.p)
	}
	if err := f.st.CheckLimit(&a.req, len(f.st.All)); err != nil {
		return f, err
	}
	if a.sess != nil && a.on != nil && clientv3.LeaseID(get(2)[0].Lease) != a.on.lease { // the session has moved, and the answer was lost
		_, err = a.b.readSession(ctx, a.sess)
	}
	return f, err
}

// record returns the entry's value while it is in the queue.
func (a *acquisition) record() record {
	r := record{
		Lease: string(a.req.Lease), Session: string(a.req.Session), Owner: a.req.Owner, Note: a.req.Note,
		Permits: a.req.Permits, Asked: time.Now().UnixMilli(),
	}
	if a.req.Timed {
		r.TTL = a.req.TTL.Milliseconds()
	}
	return r
}

// puts returns the operations that write an entry and its claim on an etcd lease. The entry at the
// head has a claim only where it has an etcd lease of its own: watchers recognise the end of that
// lease by the claim.
func (b *Backend) puts(id leaseKey, key string, lease clientv3.LeaseID, r record) []clientv3.Op {
	ops := []clientv3.Op{clientv3.OpPut(key, encode(r), clientv3.WithLease(lease))}
	if key == b.keys.head(id.name) && (!r.Out || r.Pooled) {
		return ops
	}
	return append(ops, clientv3.OpPut(b.keys.claim(id.name, id.id), key, clientv3.WithLease(lease)))
}

// clear returns the conditions under which nothing is in the way of the claim, whatever the entries
// contain.
func (a *acquisition) clear() []clientv3.Cmp {
	k, lock := a.b.keys, a.req.Name
	if a.req.Mode == backend.Exclusive {
		return []clientv3.Cmp{k.entries(lock).empty()}
	}
	cmps := []clientv3.Cmp{k.exclusive(lock).empty()}
	if a.req.Limit > 0 {
		cmps = append(cmps, k.sharedWith(lock, a.req.Limit).empty())
	}
	return cmps
}

// enqueue joins the queue in one transaction, which also reports whether nothing is in the way.
// Then it waits until nothing is.
func (a *acquisition) enqueue(ctx context.Context) (backend.Grant, error) {
	// If other leases of this value hold the lock or wait for it, the queue is known not to be
	// empty.
	if a.req.Mode == backend.Exclusive && !a.req.Timed && !a.b.slots.shares(a.p) {
		if g, ok, err := a.tryOnce(ctx, found{}); ok || err != nil {
			return g, err
		}
	}
	kind := alone
	if a.req.Mode == backend.Exclusive {
		kind = joins
	}
	for n := 0; ; n++ {
		a.asked = time.Now()
		a.step()
		key, r := a.key(), a.record()
		resp, rev, err := a.b.commits.commit(ctx, opAcquire, &change{
			name: a.req.Name, kind: kind, rides: kind == joins && a.b.queues.waits(a.req.Name), cmps: a.b.keys.headed(a.req.Name, a.req.Lease),
			els: []clientv3.Op{clientv3.OpTxn(a.guards(), a.newEntry(key, r), nil)},
		})
		if err != nil {
			return backend.Grant{}, err
		}
		if resp.Succeeded {
			return a.again(ctx)
		}
		if in := resp.Responses[0].GetResponseTxn(); in.GetSucceeded() {
			a.b.slots.stand(a.p, key, rev)
			return a.entered(ctx, in, &entry{record: r, key: key, rev: rev, mod: rev, lease: a.on.lease})
		}
		f, err := a.see(ctx)
		if err != nil {
			return backend.Grant{}, err
		}
		if f.claimed {
			return a.again(ctx)
		}
		// The slot was taken, and another one is tried; or the obstacle is gone. Pauses bound the
		// requests if it is neither.
		const immediate = 3
		if n >= immediate && !retry.Until(delay(n-immediate), ctx.Done(), a.sess.life.Done()) {
			return backend.Grant{}, a.over(ctx, context.Cause(ctx))
		}
	}
}

// step loads what the session hangs on, for the next change.
func (a *acquisition) step() {
	if a.sess != nil {
		a.on = a.sess.on.Load()
	}
}

// alive returns the condition that the session, if there is one, exists and hangs on what step
// loaded.
func (a *acquisition) alive() []clientv3.Cmp {
	if a.sess == nil {
		return nil
	}
	return []clientv3.Cmp{a.on.present}
}

// newEntry returns the operations that make the entry and read what is before it.
func (a *acquisition) newEntry(key string, r record) []clientv3.Op {
	if a.req.Mode == backend.Exclusive {
		last := a.b.keys.entries(a.req.Name).get(append(clientv3.WithLastCreate(), clientv3.WithKeysOnly())...)
		return append([]clientv3.Op{last}, a.b.puts(a.p.leaseKey, key, a.on.lease, r)...)
	}
	// The inner transaction does nothing: its conditions are the check. They are evaluated as of
	// the moment before the entry was made, so an entry made later comes after it.
	return append(a.b.puts(a.p.leaseKey, key, a.on.lease, r), clientv3.OpTxn(a.clear(), nil, nil))
}

// entered decides on an entry that has just been made.
func (a *acquisition) entered(ctx context.Context, in *pb.TxnResponse, own *entry) (backend.Grant, error) {
	if a.req.Mode == backend.Shared {
		if in.Responses[2].GetResponseTxn().GetSucceeded() {
			return a.promote(ctx, own, false)
		}
		return a.again(ctx)
	}
	last := in.Responses[0].GetResponseRange().GetKvs()
	if len(last) == 0 {
		return a.promote(ctx, own, false)
	}
	before := need{key: string(last[0].Key), rev: last[0].CreateRevision}
	return a.wait(ctx, own.rev, verdict{need: before, rev: own.rev})
}

// uncertain makes an error report that the lease may be held: its entry is in the queue.
func (a *acquisition) uncertain(err error) error {
	if final(err) {
		return err
	}
	return &backend.UnavailableError{Backend: name, Op: opAcquire, MayHold: true, Err: err}
}

// vanished returns the reason why the entry no longer exists.
func (a *acquisition) vanished(ctx context.Context) error {
	if a.sess == nil {
		return backend.ErrLost
	}
	st, err := a.b.readSession(ctx, a.sess)
	switch {
	case err != nil:
		return err
	case st.gone:
		a.b.end(a.sess, true)
		return backend.ErrSessionLost
	default:
		return backend.ErrLost
	}
}

// over returns the reason why a call ended whose entry may exist.
func (a *acquisition) over(ctx context.Context, err error) error {
	if a.sess.life.Err() != nil {
		return context.Cause(a.sess.life)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return a.uncertain(err)
}

// delay returns how long to wait before the next attempt, with jitter: 20 ms, doubling to 1 s.
func delay(n int) time.Duration {
	return retry.Delay(n, 20*time.Millisecond, time.Second)
}
