package etcdlock

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	// movesAtOnce bounds the timed leases of a renewal that move concurrently, and leasesAtOnce
	// those that get an etcd lease of their own: the others continue to share one for now.
	movesAtOnce  = 64
	leasesAtOnce = 8
	// movesTried is how often a renewal tries to move a lease that other clients renew as well.
	movesTried = 5
)

// renewTimed extends timed leases.
func (b *Backend) renewTimed(ctx context.Context, reqs []backend.TimedRenewal) ([]backend.Renewal, error) {
	all := make([]leaseKey, len(reqs))
	for i, r := range reqs {
		all[i] = leaseKey{r.Name, r.Lease}
	}
	found := make([]*entry, 0, len(reqs))
	for part := range slices.Chunk(all, lookupsAtOnce) {
		es, err := b.findTimed(ctx, part)
		if err != nil {
			return nil, err
		}
		found = append(found, es...)
	}
	reqs = slices.Clone(reqs)
	var ids []clientv3.LeaseID
	for i, e := range found {
		if e != nil && reqs[i].TTL == 0 {
			reqs[i].TTL = ttlOf(e)
		}
		if e != nil && !b.moves(e, reqs[i].TTL) {
			ids = append(ids, e.lease)
		}
	}
	var ttls map[clientv3.LeaseID]int64
	if len(ids) > 0 {
		var err error
		if ttls, err = b.keepAliveSurely(ctx, ids); err != nil {
			return nil, err
		}
	}
	res := make([]backend.Renewal, len(reqs))
	var wg sync.WaitGroup
	slots := make(chan struct{}, movesAtOnce)
	leases := 0
	for i, e := range found {
		switch {
		case e == nil:
			res[i].Err = backend.ErrLost
		case b.moves(e, reqs[i].TTL) || ttls[e.lease] <= 0:
			share := sharesLeases(reqs[i].TTL) && leases >= leasesAtOnce
			if !share {
				leases++
			}
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				res[i] = b.renewMoving(ctx, e, reqs[i].TTL, share)
			})
		default:
			res[i] = b.kept(e, reqs[i].TTL, ttls[e.lease])
		}
	}
	wg.Wait()
	b.explain(ctx, all, res)
	return res, nil
}

// explain adds to the errors of lost leases that they were broken, and why: the holder of a timed
// lease has no session that a break notifies. If the tombstones cannot be read, the leases are still
// lost.
func (b *Backend) explain(ctx context.Context, ids []leaseKey, res []backend.Renewal) {
	var lost []int
	for i := range res {
		if errors.Is(res[i].Err, backend.ErrLost) {
			lost = append(lost, i)
		}
	}
	if len(lost) == 0 {
		return
	}
	const patience = 250 * time.Millisecond // the other renewals wait, too
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for part := range slices.Chunk(lost, lookupsAtOnce) {
		keys := make([]string, len(part))
		for n, i := range part {
			keys[n] = b.keys.tombstone(ids[i].name, ids[i].id)
		}
		kvs, err := b.getEach(ctx, keys)
		if err != nil {
			return
		}
		for n, i := range part {
			var r brokenRecord
			if kvs[n] != nil && json.Unmarshal(kvs[n].Value, &r) == nil { // that of a release is empty
				res[i].Err = &backend.LossError{Cause: backend.CauseBroken, Reason: r.Reason}
			}
		}
	}
}

// kept returns the renewal of a lease whose etcd lease now has so many seconds.
func (b *Backend) kept(e *entry, ttl time.Duration, has int64) backend.Renewal {
	b.slots.timed(leaseKey{e.name, e.LeaseID()}, ttl, clientv3.NoLease)
	return backend.Renewal{Token: e.token(), Left: min(ttl, time.Duration(has)*time.Second)}
}

// moves reports whether the renewal of a timed lease moves it to another etcd lease. It moves from
// one that it shares, because no single lease may renew that; where the TTL changes, because etcd
// cannot change that of a lease; and from one that a deposed leader may revoke, see sessionLease. It
// also moves where an earlier move, to an etcd lease that was made before, may still arrive: once
// the entry is written again, that move no longer finds it as it was.
func (b *Backend) moves(e *entry, ttl time.Duration) bool {
	return e.Pooled || seconds(ttlOf(e)) != seconds(ttl) || e.Term < b.term.Load() || b.movesInDoubt.Has(e.LeaseID())
}

func ttlOf(e *entry) time.Duration { return time.Duration(e.TTL) * time.Millisecond }

// leftOf returns what is left of a timed lease whose etcd lease has so much left. A shared etcd
// lease was made up to a second before it was used, and lives for that much longer.
func leftOf(e *entry, has time.Duration) time.Duration {
	ttl := ttlOf(e)
	if e.Pooled {
		has -= poolLife(ttl) - ttl
	}
	return min(has, ttl)
}

// renewMoving renews a timed lease that other clients may renew as well, and so move from one etcd
// lease to another.
func (b *Backend) renewMoving(ctx context.Context, e *entry, ttl time.Duration, share bool) backend.Renewal {
	for range movesTried {
		if b.moves(e, ttl) {
			r, again := b.moveTimed(ctx, e, ttl, share)
			if again == nil {
				return r
			}
			e = again
			continue
		}
		ttls, err := b.keepAliveSurely(ctx, []clientv3.LeaseID{e.lease})
		if err != nil {
			return backend.Renewal{Err: err}
		}
		if has := ttls[e.lease]; has > 0 && !b.moves(e, ttl) {
			return b.kept(e, ttl, has)
		}
		// Its etcd lease has ended: the lease has ended with it, unless it is on another.
		es, err := b.findTimed(ctx, []leaseKey{{e.name, e.LeaseID()}})
		if err != nil {
			return backend.Renewal{Err: err}
		}
		if es[0] == nil || es[0].lease == e.lease && ttls[e.lease] <= 0 {
			return backend.Renewal{Err: backend.ErrLost}
		}
		e = es[0]
	}
	return backend.Renewal{Err: &backend.UnavailableError{
		Backend: name, Op: opRenew, MayHold: true, Err: errors.New("other renewals came between"),
	}}
}

// moveTimed moves a timed lease to another etcd lease: one that it shares, or one of its own, which
// is renewed from then on. If another client has changed the entry in the meantime, moveTimed
// returns the entry as it is now.
func (b *Backend) moveTimed(ctx context.Context, e *entry, ttl time.Duration, share bool) (backend.Renewal, *entry) {
	h, err := b.home(ctx, ttl, share)
	if err != nil {
		return backend.Renewal{Err: err}, nil
	}
	id := leaseKey{e.name, e.LeaseID()}
	resp, _, err := b.commitAt(ctx, opRenew, h, &change{
		name: e.name,
		cmps: []clientv3.Cmp{created(e.key, e.rev), modified(e.key, e.mod)},
		then: b.puts(id, e.key, h.id, h.record(e.record, ttl)),
		els:  []clientv3.Op{clientv3.OpGet(e.key)},
	})
	if mayHold(err) {
		b.movesInDoubt.Add(e.LeaseID())
	}
	switch {
	case leaseGone(err):
		return backend.Renewal{Err: &backend.UnavailableError{Backend: name, Op: opRenew, MayHold: true, Err: err}}, nil
	case err != nil:
		return backend.Renewal{Err: err}, nil
	case !resp.Succeeded:
		b.movesInDoubt.Drop(e.LeaseID())
		return b.overtaken(resp, e)
	}
	b.movesInDoubt.Drop(e.LeaseID())
	if e.alone() {
		b.revoker.revoke(e.lease)
	}
	b.slots.timed(id, ttl, h.shared())
	return backend.Renewal{Token: e.token(), Left: max(0, ttl-time.Since(h.asked))}, nil
}

// overtaken returns the outcome for a lease that another client has changed in the meantime.
func (b *Backend) overtaken(resp *pb.TxnResponse, e *entry) (backend.Renewal, *entry) {
	for _, kv := range resp.Responses[0].GetResponseRange().GetKvs() {
		if again := b.keys.decode(kv); again != nil && again.rev == e.rev && again.Out {
			return backend.Renewal{}, again
		}
	}
	return backend.Renewal{Err: backend.ErrLost}, nil
}
