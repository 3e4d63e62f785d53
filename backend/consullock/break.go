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

// maxVictims and maxTxnOps bound a transaction, in which Consul accepts 64 operations: two for each
// victim, and one for each session that is notified. It accepts half a MiB, in base 64.
const maxVictims, maxTxnOps = 30, 64

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

// Evict deletes the keys of the first n victims and notifies their sessions, in one transaction.
func (br *breaking) Evict(ctx context.Context, victims []victim, n int) ([]victim, seqlock.Outcome, error) {
	var ops api.KVTxnOps
	fresh := make(map[string][]seqlock.Notice)
	for i := range n {
		e := &victims[i].Entry
		// A delete with an index also succeeds if the key is gone: by a release, which has reported
		// success to its caller.
		ops = append(ops, &api.KVTxnOp{Verb: api.KVCheckIndex, Key: e.key, Index: e.modified}, &api.KVTxnOp{Verb: api.KVDelete, Key: e.key})
		fresh[e.uuid] = append(fresh[e.uuid], seqlock.Notice{Lease: e.lease, Reason: br.req.Reason})
	}
	for uuid, notices := range fresh {
		op, err := br.b.notify(ctx, uuid, notices)
		if err != nil {
			return victims, seqlock.Nothing, err
		}
		if op != nil { // otherwise the session is gone, and its leases are about to be
			ops = append(ops, op)
		}
	}
	_, err := br.b.txn(ctx, ops)
	if e, ok := errors.AsType[*txnError](err); ok {
		victims, err = br.refused(ctx, e, victims)
		return victims, seqlock.Nothing, err
	}
	switch {
	case err == nil:
		return nil, seqlock.Done, nil
	case refused(err):
		return victims, seqlock.Nothing, err
	}
	return victims, seqlock.Unknown, err
}

// Fits returns how many victims fit into one transaction, with the notices to their sessions.
func (br *breaking) Fits(victims []victim) int {
	sessions := make(map[string]bool)
	for i := range victims {
		sessions[victims[i].Entry.uuid] = true
		if i == maxVictims || 2*(i+1)+len(sessions) > maxTxnOps {
			return i
		}
	}
	return len(victims)
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

// refused drops the victims that have left: one of them made Consul refuse the transaction, of which
// nothing was done. If nothing has happened to them, it returns Consul's error.
func (br *breaking) refused(ctx context.Context, err *txnError, victims []victim) ([]victim, error) {
	q, failed := br.b.look(ctx, br.req.Name)
	if failed != nil {
		return victims, failed
	}
	places := places(q)
	moved := isRefused(err, becauseStale) // another break has notified a session
	var left []victim
	for _, v := range victims {
		i, ok := places[v.Entry.lease]
		if !ok || q.All[i].created != v.Entry.created {
			moved = true
			continue
		}
		moved = moved || q.All[i].modified != v.Entry.modified
		v.Entry.modified = q.All[i].modified
		left = append(left, v)
	}
	if !moved {
		return victims, err
	}
	return left, nil
}
