package consullock

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// Evictor begins a break.
func (st store) Evictor(_ context.Context, req *backend.BreakRequest) (seqlock.Evictor[entry], error) {
	return &breaking{b: st.Backend, req: req}, nil
}

type victim = seqlock.Victim[entry]

// breaking is a Break in progress. It implements seqlock.Evictor.
type breaking struct {
	b   *Backend
	req *backend.BreakRequest
}

// maxVictims and maxTxnOps bound a transaction, in which Consul accepts 64 operations, and half a MiB in base 64. A victim
// takes up to opsOfVictim, of which one notifies its session.
const maxVictims, maxTxnOps, opsOfVictim = 30, 64, 3

// Stamp returns the index of a write: Consul counts its changes.
func (br *breaking) Stamp(ctx context.Context) (fence.Token, error) {
	pairs, err := br.b.txn(ctx, api.KVTxnOps{{Verb: api.KVSet, Key: br.b.tokenKey(), Value: []byte(rand.Text())}})
	if err == nil && len(pairs) == 0 {
		err = errors.New("the token is not in the answer")
	}
	if err != nil {
		return 0, err
	}
	return fence.Token(pairs[0].ModifyIndex), nil
}

// Holders reads the front of the queue.
func (br *breaking) Holders(ctx context.Context) ([]victim, error) {
	q, err := br.b.look(ctx, br.req.Name)
	if err != nil {
		return nil, err
	}
	front := q.Holders()
	var all []victim
	for i, h := range describe(br.req.Name, front).Holders {
		all = append(all, victim{Entry: front.All[i], Holder: h})
	}
	return all, nil
}

// Evict deletes the keys of the first victims and notifies their sessions, in one transaction.
func (br *breaking) Evict(ctx context.Context, victims []victim) (int, seqlock.Outcome, error) {
	var ops api.KVTxnOps
	fresh := make(map[string][]seqlock.Notice)
	n := 0
	for n < min(len(victims), maxVictims) && len(ops)+len(fresh)+opsOfVictim <= maxTxnOps {
		e := &victims[n].Entry
		// A delete with an index also succeeds if the key is gone: by a release, which has reported
		// success to its caller.
		ops = append(ops, &api.KVTxnOp{Verb: api.KVCheckIndex, Key: e.key, Index: e.modified}, &api.KVTxnOp{Verb: api.KVDelete, Key: e.key})
		fresh[e.uuid] = append(fresh[e.uuid], seqlock.Notice{Lease: e.lease, Reason: br.req.Reason})
		n++
	}
	for uuid, notices := range fresh {
		op, err := br.b.notify(ctx, uuid, notices)
		if err != nil {
			return n, seqlock.Nothing, err
		}
		if op != nil { // otherwise the session is gone, and its leases are about to be
			ops = append(ops, op)
		}
	}
	_, err := br.b.txn(ctx, ops)
	switch {
	case err == nil:
		return n, seqlock.Done, nil
	case isRefused(err, becauseAbsent, becauseChanged, becauseStale):
		return n, seqlock.Moved, nil
	case refused(err):
		return n, seqlock.Nothing, err
	}
	return n, seqlock.Unknown, err
}

// notify returns the operation that adds to the notices of a session, or nil if the session is
// gone.
func (b *Backend) notify(ctx context.Context, uuid string, fresh []seqlock.Notice) (*api.KVTxnOp, error) {
	pair, err := b.get(ctx, b.noticeKey(uuid))
	if err != nil || pair == nil {
		return nil, err
	}
	value, err := seqlock.AddNotices(pair.Value, fresh, len(fresh))
	if err != nil {
		return nil, err
	}
	return &api.KVTxnOp{Verb: api.KVCAS, Key: pair.Key, Index: pair.ModifyIndex, Value: value}, nil
}
