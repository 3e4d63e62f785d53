package etcdlock

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
)

// Release releases a lease, or its place in the queue. With req.Abandon it can never be granted
// afterwards: a tombstone is remembered for ten minutes or more, which is longer than a late
// request can live.
//
// Errors: ErrLost if there is no such lease, unless req.Abandon is set; *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Release(ctx context.Context, req backend.ReleaseRequest) error {
	ctx, leave, err := b.enter(ctx, req.Validate())
	if err != nil {
		return err
	}
	defer leave()
	id := leaseKey{req.Name, req.Lease}
	bury := req.Abandon || b.inDoubt.Has(req.Lease)
	found, err := b.release(ctx, id, bury)
	if bury && noSpace(err) {
		// The tombstone cannot be written, so the caller must retry; but other clients can have the
		// lock.
		_, _ = b.release(ctx, id, false)
	}
	if err != nil {
		return err
	}
	b.slots.drop(id)
	b.queues.remove(req.Name, req.Lease)
	if !found && !req.Abandon {
		return backend.ErrLost
	}
	return nil
}

const opRelease = "release"

// release deletes the entry of a lease, and reports whether there was one. With bury, the lease can
// never be granted again.
func (b *Backend) release(ctx context.Context, id leaseKey, bury bool) (bool, error) {
	if at, ok := b.slots.find(id); ok {
		if found, err := b.remove(ctx, id, at, bury); found || err != nil || !bury {
			return found, err
		}
		// A request of another session may have made another entry since, and lost the answer.
		b.slots.drop(id)
		bury = false
	}
	if bury {
		// The tombstone goes first: an entry that it does not keep out exists by then.
		if _, err := b.bury(ctx, id, func(tomb []clientv3.Op) *change { return &change{name: id.name, then: tomb} }); err != nil {
			return false, err
		}
	}
	for {
		es, err := b.lookup(ctx, []leaseKey{id})
		if err != nil || es[0] == nil {
			return false, err
		}
		e := es[0]
		if found, err := b.remove(ctx, id, entryRef{key: e.key, rev: e.rev, alone: e.alone()}, false); found || err != nil {
			return found, err
		}
	}
}

// entryRef identifies one entry: keys are reused.
type entryRef struct {
	key   string
	rev   int64
	alone bool             // of a timed lease with an etcd lease of its own
	pool  clientv3.LeaseID // of a timed lease that shares one
	held  bool             // held, and not timed
}

// remove deletes an entry. The claim of a timed lease stays, and ends with its etcd lease: that
// shows watchers that the lease did not expire.
func (b *Backend) remove(ctx context.Context, id leaseKey, e entryRef, bury bool) (bool, error) {
	entry, claim := clientv3.OpDelete(e.key), clientv3.OpDelete(b.keys.claim(id.name, id.id))
	if !e.held { // there may be an etcd lease to revoke
		entry = clientv3.OpDelete(e.key, clientv3.WithPrevKV())
	}
	var next *waiter
	if e.held && b.keys.isExclusive(id.name, e.key) { // of several that share, others stay
		next = b.queues.after(id.name, e)
	}
	asked := time.Now()
	build := func(tomb []clientv3.Op) *change {
		ch := &change{
			name: id.name, kind: leaves, cmps: []clientv3.Cmp{created(e.key, e.rev)},
			then: append([]clientv3.Op{entry}, tomb...),
			els:  tomb,
		}
		if e.pool != clientv3.NoLease && e.key != b.keys.head(id.name) {
			// Another client may have renewed it, and moved it to an etcd lease of its own.
			here := []clientv3.Cmp{clientv3.Compare(clientv3.LeaseValue(e.key), "=", int64(e.pool))}
			ch.then = append(ch.then, clientv3.OpTxn(here, []clientv3.Op{claim}, nil))
		} else if !e.alone && e.key != b.keys.head(id.name) {
			ch.then = append(ch.then, claim)
		}
		if next != nil {
			ch.then = append(ch.then, clientv3.OpTxn(b.turnOf(next), nil, nil))
		}
		return ch
	}
	var resp *pb.TxnResponse
	var err error
	if bury {
		resp, err = b.bury(ctx, id, build)
	} else {
		resp, _, err = b.commits.commit(ctx, opRelease, build(nil))
	}
	if next != nil {
		isNext := err == nil && resp.Succeeded && resp.Responses[len(resp.Responses)-1].GetResponseTxn().GetSucceeded()
		b.queues.hand(next, asked, isNext)
	}
	if err != nil || !resp.Succeeded {
		return false, err
	}
	for _, kv := range resp.Responses[0].GetResponseDeleteRange().GetPrevKvs() {
		if e.pool != clientv3.NoLease && clientv3.LeaseID(kv.Lease) == e.pool {
			continue // others share that etcd lease
		}
		if e := b.keys.decode(kv); e != nil && e.alone() {
			b.revoke(e.lease)
		}
	}
	return true, nil
}

// turnOf returns the conditions under which a waiter is next when the lease right before it, which
// has the lock, is released: the waiter is still in the queue, its session is alive, and no other session
// has adopted its place. Nothing else can be before the waiter: an entry made later ranks later.
func (b *Backend) turnOf(w *waiter) []clientv3.Cmp {
	return []clientv3.Cmp{
		created(w.key, w.rev), clientv3.Compare(clientv3.LeaseValue(w.key), "=", int64(w.sess.on.Load().lease)),
		present(b.keys.session(w.sess.id)),
	}
}

// bury commits a change that also writes the tombstone of a lease.
func (b *Backend) bury(ctx context.Context, id leaseKey, build func([]clientv3.Op) *change) (*pb.TxnResponse, error) {
	for {
		memory, err := b.memoryLease(ctx)
		if err != nil {
			return nil, err
		}
		tomb := clientv3.OpPut(b.keys.tombstone(id.name, id.id), "", clientv3.WithLease(memory.id))
		resp, _, err := b.commits.commit(ctx, opRelease, build([]clientv3.Op{tomb}))
		if !leaseGone(err) {
			return resp, err
		}
		memory.gone.Store(true) // this process slept for long
	}
}
