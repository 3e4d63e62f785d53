package etcdlock

import (
	"context"
	"errors"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	opRenew = "renew"
	// readsAtOnce bounds the keys that one transaction reads: see batchSize.
	readsAtOnce = 96
	// auditEvery bounds the cost of checking that all leases of a session exist: for every
	// auditEvery leases of a session, one more renewal between two checks goes without.
	auditEvery = 512
)

var errShortAnswer = errors.New("the answer does not match the request")

// Renew extends the session and the timed leases, with one keep-alive stream for all of them. Then
// it reads the state of the session: losses that the watch did not report are in the result.
//
// Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	ctx, leave, err := b.enter(ctx, req.Validate(b.caps))
	if err != nil {
		return backend.RenewResult{}, err
	}
	defer leave()
	var res backend.RenewResult
	if len(req.Leases) > 0 {
		if res.Leases, err = b.renewTimed(ctx, req.Leases); err != nil {
			return backend.RenewResult{}, err
		}
	}
	if req.Session == "" {
		return res, nil
	}
	s, err := b.session(ctx, req.Session)
	if err == nil {
		res.Lost, err = b.renewSession(ctx, s)
	}
	if errors.Is(err, backend.ErrSessionLost) && !backend.IsCause(ctx, err) {
		res.SessionLost, err = true, nil
	}
	if len(req.Leases) > 0 {
		err = backend.PartDone(name, opRenew, err)
	}
	if err != nil {
		return backend.RenewResult{}, err
	}
	return res, nil
}

// renewSession extends a session and returns the losses to report. ErrSessionLost: it has ended.
func (b *Backend) renewSession(ctx context.Context, s *session) ([]backend.Loss, error) {
	before := b.leasesOf(s)
	on := s.on.Load()
	ttls, term, err := b.keepAlive(ctx, append([]clientv3.LeaseID{on.lease}, on.old...))
	if err != nil {
		return nil, err
	}
	// The record lives and dies with the etcd lease. Reading it after the keep-alive proves that
	// the lease that was extended is the session's. A lease reported as gone proves nothing by
	// itself: a leader that was deposed while it slept never heard of it.
	st, err := b.readSession(ctx, s)
	switch {
	case err != nil:
		return nil, backend.PartDone(name, opRenew, err)
	case st.gone:
		b.end(s, true)
		return nil, backend.ErrSessionLost
	case ttls[on.lease] <= 0 || term != st.term || s.on.Load() != on:
		return nil, fail(ctx, opRenew, errDeposed, true)
	case !on.stands(term): // the renewal counts only on another etcd lease
		before = b.slots.under(s)
		if err := b.move(ctx, s, term); err != nil {
			return nil, backend.PartDone(name, opRenew, err)
		}
	}
	gone, err := b.audit(ctx, s, before)
	return append(st.lost, gone...), backend.PartDone(name, opRenew, err)
}

// leasesOf returns the leases held under the session, as far as this value knows, or nothing if
// this renewal skips the audit.
func (b *Backend) leasesOf(s *session) map[string]leaseKey {
	leases := b.slots.under(s)
	b.mu.Lock()
	defer b.mu.Unlock()
	s.renewals++
	if s.renewals%(1+len(leases)/auditEvery) != 0 {
		return nil
	}
	return leases
}

// audit finds the leases that were held before and are not on the session's etcd lease any more,
// although they were not released or broken: their keys were deleted.
func (b *Backend) audit(ctx context.Context, s *session, before map[string]leaseKey) ([]backend.Loss, error) {
	if len(before) == 0 {
		return nil, nil
	}
	rctx, cancel := b.request(ctx)
	defer cancel()
	lease := s.on.Load().lease
	resp, err := b.client.TimeToLive(rctx, lease, clientv3.WithAttachedKeys())
	if err != nil {
		if leaseGone(err) {
			return nil, nil // the next renewal reports it
		}
		return nil, fail(ctx, "read the leases of a session", err, false)
	}
	there := make(map[string]struct{}, len(resp.Keys))
	for _, k := range resp.Keys {
		there[string(k)] = struct{}{}
	}
	now := b.slots.under(s)
	var missing []leaseKey
	for key, id := range before {
		if _, ok := there[key]; !ok && now[key] == id {
			missing = append(missing, id)
		}
	}
	// The list is what the leader has applied, which may be behind, so it only raises a suspicion.
	// Most of the time there is none.
	var gone []backend.Loss
	es, err := b.lookup(ctx, missing)
	if err != nil {
		return nil, err
	}
	for i, id := range missing {
		switch {
		case es[i] == nil:
			gone = append(gone, backend.Loss{Session: s.id, Lease: id.id, Cause: backend.CauseGone})
		case es[i].lease != lease && es[i].lease != s.on.Load().lease:
			b.changeOld(s, func(all []clientv3.LeaseID) []clientv3.LeaseID { return append(all, es[i].lease) })
			return nil, fail(ctx, opRenew, errLeft, true)
		}
	}
	return gone, nil
}

// keepAlive extends etcd leases. It returns the TTL of each, 0 for one that is gone, and the term
// of the member that answered, or an earlier one. The answer counts if a later read reports the
// same term.
func (b *Backend) keepAlive(ctx context.Context, ids []clientv3.LeaseID) (map[clientv3.LeaseID]int64, uint64, error) {
	rctx, cancel := b.request(ctx)
	defer cancel()
	slices.Sort(ids)
	ids = slices.Compact(ids)
	ttls, term := make(map[clientv3.LeaseID]int64, len(ids)), uint64(noTerm)
	err := keepAliveStream(rctx, b.client.ActiveConnection(), ids, func(answer *pb.LeaseKeepAliveResponse) {
		ttls[clientv3.LeaseID(answer.ID)] = answer.TTL
		term = min(term, answer.GetHeader().GetRaftTerm())
	})
	if err == nil && len(ttls) != len(ids) {
		err = errShortAnswer
	}
	if err != nil {
		return nil, 0, fail(ctx, opRenew, err, true)
	}
	return ttls, term, nil
}

// keepAliveStream sends all requests on one stream. clientv3.KeepAliveOnce would open one stream for each,
// and spins while etcd is unreachable.
func keepAliveStream(ctx context.Context, conn *grpc.ClientConn, ids []clientv3.LeaseID, answered func(*pb.LeaseKeepAliveResponse)) error {
	// Sending does not wait for answers, and the requests need not fit into buffers. If it fails,
	// receiving fails too, and reports why.
	var sending sync.WaitGroup
	defer sending.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewLeaseClient(conn).LeaseKeepAlive(ctx)
	if err != nil {
		return err //nolint:wrapcheck // the caller maps it
	}
	sending.Go(func() {
		for _, id := range ids {
			if stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}) != nil {
				return
			}
		}
		_ = stream.CloseSend() // the end of ctx closes it as well
	})
	for range ids {
		answer, err := stream.Recv()
		if err != nil {
			return err //nolint:wrapcheck // the caller maps it
		}
		answered(answer)
	}
	return nil
}

// lookup finds the entries of leases: nil where there is none. For a lease that this value does not
// know, the claim says where the entry is. Without a claim it can only be at the head.
func (b *Backend) lookup(ctx context.Context, ids []leaseKey) ([]*entry, error) {
	keys := make([]string, len(ids)) // of the entries
	var claims []string
	for i, id := range ids {
		if at, ok := b.slots.find(id); ok {
			keys[i] = at.key
		} else {
			claims = append(claims, b.keys.claim(id.name, id.id), b.keys.head(id.name))
		}
	}
	got := make(map[string]*mvccpb.KeyValue)
	if err := b.getEach(ctx, claims, got); err != nil {
		return nil, err
	}
	for i, id := range ids {
		if keys[i] != "" {
			continue
		}
		keys[i] = b.keys.head(id.name)
		if claim := got[b.keys.claim(id.name, id.id)]; claim != nil && b.keys.entryOf(id, got[keys[i]]) == nil {
			keys[i] = string(claim.Value)
		}
	}
	if err := b.getEach(ctx, keys, got); err != nil {
		return nil, err
	}
	es := make([]*entry, len(ids))
	for i, id := range ids {
		es[i] = b.keys.entryOf(id, got[keys[i]])
	}
	return es, nil
}

// getEach reads those keys that are not in got yet, and puts them there: nil for one that does not exist, or is
// empty.
func (b *Backend) getEach(ctx context.Context, keys []string, got map[string]*mvccpb.KeyValue) error {
	var ops []clientv3.Op
	for _, key := range keys {
		if _, ok := got[key]; !ok && key != "" {
			got[key] = nil
			ops = append(ops, clientv3.OpGet(key))
		}
	}
	for part := range slices.Chunk(ops, readsAtOnce) {
		resp, err := b.txn(ctx, "look up leases", false, nil, part)
		if err != nil {
			return err
		}
		for _, answer := range resp.Responses {
			for _, kv := range answer.GetResponseRange().Kvs {
				got[string(kv.Key)] = kv
			}
		}
	}
	return nil
}
