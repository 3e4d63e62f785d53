package etcdlock

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	// movesAtOnce bounds the timed leases of a renewal that move concurrently, and leasesAtOnce
	// those that get an etcd lease of their own: the others continue to share one for now.
	movesAtOnce  = 64
	leasesAtOnce = 8
	// roundsTried bounds the rounds of a renewal.
	roundsTried = 5
)

var errOvertaken = errors.New("other renewals came between")

// renewing is a renewal of timed leases. It goes in rounds: a lease that another client has renewed in between,
// and so moved from one etcd lease to another, is looked up again in the next one.
type renewing struct {
	b    *Backend
	reqs []backend.TimedRenewal
	res  []backend.Renewal
	rest []int // those that have no result yet
	own  int   // how many get an etcd lease of their own
}

// renewTimed extends timed leases.
func (b *Backend) renewTimed(ctx context.Context, reqs []backend.TimedRenewal) ([]backend.Renewal, error) {
	r := &renewing{b: b, reqs: reqs, res: make([]backend.Renewal, len(reqs))}
	for i := range reqs {
		r.rest = append(r.rest, i)
	}
	if err := r.round(ctx); err != nil {
		return nil, err
	}
	for n := 1; len(r.rest) > 0; n++ {
		err := errOvertaken
		if n < roundsTried {
			err = r.round(ctx)
		}
		if err != nil {
			for _, i := range r.rest {
				r.res[i].Err = fail(ctx, opRenew, err, true)
			}
			break
		}
	}
	r.explain(ctx)
	return r.res, nil
}

// round looks up what is left to renew, extends the etcd leases that do not move, and moves the others.
func (r *renewing) round(ctx context.Context) error {
	b := r.b
	es, err := b.lookup(ctx, r.ids())
	if err != nil {
		return err
	}
	var ids []clientv3.LeaseID
	for n, i := range r.rest {
		if es[n] != nil && !b.moves(es[n], r.ttl(i, es[n])) {
			ids = append(ids, es[n].lease)
		}
	}
	var ttls map[clientv3.LeaseID]int64
	if len(ids) > 0 {
		if ttls, err = b.keepAliveSurely(ctx, ids); err != nil {
			return err
		}
	}
	again := make([]bool, len(r.rest))
	var wg sync.WaitGroup
	slots := make(chan struct{}, movesAtOnce)
	for n, i := range r.rest {
		e := es[n]
		switch {
		case e == nil || !e.Out:
			r.res[i].Err = backend.ErrLost
		case b.moves(e, r.ttl(i, e)):
			share := r.shares(r.ttl(i, e))
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				var moved bool
				r.res[i], moved = b.moveTimed(ctx, e, r.ttl(i, e), share)
				again[n] = !moved
			})
		case ttls[e.lease] > 0:
			r.res[i] = b.kept(e, r.ttl(i, e), ttls[e.lease])
		default: // its etcd lease has ended: the lease has ended with it, unless it is on another
			again[n] = true
		}
	}
	wg.Wait()
	var rest []int
	for n, i := range r.rest {
		if again[n] {
			rest = append(rest, i)
		}
	}
	r.rest = rest
	return nil
}

// ids names the leases that are left.
func (r *renewing) ids() []leaseKey {
	ids := make([]leaseKey, len(r.rest))
	for n, i := range r.rest {
		ids[n] = leaseKey{r.reqs[i].Name, r.reqs[i].Lease}
	}
	return ids
}

// ttl returns what to extend a lease to.
func (r *renewing) ttl(i int, e *entry) time.Duration { return cmp.Or(r.reqs[i].TTL, ttlOf(e)) }

// shares reports whether a lease that moves gets an etcd lease that others share.
func (r *renewing) shares(ttl time.Duration) bool {
	if sharesLeases(ttl) && r.own >= leasesAtOnce {
		return true
	}
	r.own++
	return false
}

// explain adds to the errors of lost leases that they were broken, and why: the holder of a timed
// lease has no session that a break notifies. If the tombstones cannot be read, the leases are still
// lost.
func (r *renewing) explain(ctx context.Context) {
	const patience = 250 * time.Millisecond // the other renewals wait, too
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tombs := make([]string, len(r.res)) // of those that are lost
	for i := range r.res {
		if errors.Is(r.res[i].Err, backend.ErrLost) {
			tombs[i] = r.b.keys.tombstone(r.reqs[i].Name, r.reqs[i].Lease)
		}
	}
	got := make(map[string]*mvccpb.KeyValue)
	_ = r.b.getEach(ctx, tombs, got)
	for i, tomb := range tombs {
		var note brokenRecord
		if got[tomb] != nil && json.Unmarshal(got[tomb].Value, &note) == nil { // that of a release is empty
			r.res[i].Err = &backend.LossError{Cause: backend.CauseBroken, Reason: note.Reason}
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
// also moves where another move may be on its way: see announce.
func (b *Backend) moves(e *entry, ttl time.Duration) bool {
	return e.Pooled || e.Moving || seconds(ttlOf(e)) != seconds(ttl) || e.Term < b.term.Load()
}

// announce writes into an entry that it is about to move, before the etcd lease is made that it moves to. Every later
// renewal, of whatever client, then moves it too, and the announced move no longer finds the entry as it was. Without
// that, a move that arrives late would put it on an etcd lease that ends earlier than the later renewal has reported.
// An entry that shares its etcd lease moves with every renewal anyway. announce returns false if the entry has changed.
func (b *Backend) announce(ctx context.Context, e *entry) (bool, error) {
	if e.Pooled || e.Moving {
		return true, nil
	}
	e.Moving = true
	resp, rev, err := b.commits.commit(ctx, opRenew, &change{
		name: e.name,
		cmps: []clientv3.Cmp{created(e.key, e.rev), modified(e.key, e.mod)},
		then: []clientv3.Op{clientv3.OpPut(e.key, encode(e.record), clientv3.WithLease(e.lease))},
	})
	e.mod = rev
	return err == nil && resp.Succeeded, err
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

// moveTimed moves a timed lease to another etcd lease: one that it shares, or one of its own, which
// is renewed from then on. It returns false if the entry has changed in the meantime.
func (b *Backend) moveTimed(ctx context.Context, e *entry, ttl time.Duration, share bool) (backend.Renewal, bool) {
	if announced, err := b.announce(ctx, e); err != nil || !announced {
		return backend.Renewal{Err: err}, err != nil
	}
	h, err := b.home(ctx, ttl, share)
	if err != nil {
		return backend.Renewal{Err: err}, true
	}
	id := leaseKey{e.name, e.LeaseID()}
	resp, _, err := b.commitAt(ctx, opRenew, h, &change{
		name: e.name,
		cmps: []clientv3.Cmp{created(e.key, e.rev), modified(e.key, e.mod)},
		then: b.puts(id, e.key, h.id, h.record(e.record, ttl)),
	})
	if leaseGone(err) { // it took longer than the TTL
		err = backend.PartDone(name, opRenew, err)
	}
	if err != nil {
		return backend.Renewal{Err: err}, true
	}
	if !resp.Succeeded {
		return backend.Renewal{}, false
	}
	if e.alone() {
		b.revoke(e.lease)
	}
	b.slots.timed(id, ttl, h.shared())
	return backend.Renewal{Token: e.token(), Left: max(0, ttl-time.Since(h.asked))}, true
}
