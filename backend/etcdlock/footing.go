package etcdlock

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
)

// footing is what a session hangs on: an etcd lease, and since which term of etcd.
//
// The leader of etcd ends leases, by its own clock. One that was stopped for longer than
// a TTL, and deposed meanwhile, finds all leases over when it goes on that nobody renewed
// with it. Before it learns what happened it has their end proposed, and once it follows
// the new leader it passes that on: leases end that were renewed at the new leader, up to
// a whole TTL before their time (etcd-io/etcd#15247, which was closed; but in 3.7.3 a
// member that has ticked a moment ago takes it that it still leads, and who is woken ticks
// first). For the same reason it acknowledges renewals that nobody else knows of.
//
// So a renewal counts only
//   - where a read afterwards finds the term that the answer to the keep-alive was given
//     in: then nobody else was the leader at that time;
//   - on an etcd lease that no leader of an earlier term has known. A session on an older
//     one moves to another with all that it has, and is renewed when that is done. Until
//     then its time is what the leader before has acknowledged, which that keeps.
type footing struct {
	lease clientv3.LeaseID
	// term is one that etcd had reached before the lease was made.
	term uint64
	rev  int64 // that the record of the session was written at
	// present is the condition that the session is there, and on this lease: one for all
	// its changes, so that it is asked once in each transaction.
	present clientv3.Cmp
	// old are leases on which the session may have left something.
	old []clientv3.LeaseID
}

// movesInOne bounds the keys that move in one transaction.
const movesInOne = 60

// noTerm is in the place of a term where no lease was found.
const noTerm = math.MaxUint64

var (
	errDeposed = errors.New("who answered may not have been the leader of etcd any more")
	errLeft    = errors.New("a lease of the session is not where the session is")
)

// saw notes a term that etcd has reached.
func (b *Backend) saw(term uint64) {
	for {
		seen := b.term.Load()
		if term <= seen || b.term.CompareAndSwap(seen, term) {
			return
		}
	}
}

// reached gives a term that etcd has reached: the latest that was seen, or if none was, that
// which etcd says.
func (b *Backend) reached(ctx context.Context) (uint64, error) {
	if term := b.term.Load(); term > 0 {
		return term, nil
	}
	return b.readTerm(ctx, opGrant)
}

// readTerm reads, like everybody who wants to know what is so now, and gives the term.
func (b *Backend) readTerm(ctx context.Context, op string) (uint64, error) {
	resp, err := b.get(ctx, op, b.keys.opened(""), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	b.saw(resp.Header.RaftTerm)
	return resp.Header.RaftTerm, nil
}

// stands reports whether a renewal in that term counts.
func (f *footing) stands(term uint64) bool { return f.term >= term && len(f.old) == 0 }

// footingOf reads the record of a session.
func footingOf(kv *mvccpb.KeyValue) (time.Duration, footing) {
	var r sessionRecord
	_ = json.Unmarshal(kv.Value, &r) // a TTL of 0 is confirmed by nobody
	return time.Duration(r.TTL) * time.Millisecond, footing{lease: clientv3.LeaseID(kv.Lease), term: r.Term, rev: kv.ModRevision}
}

// step notes what a session hangs on, unless something newer is known.
func (b *Backend) step(s *session, on footing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stepLocked(s, on)
}

func (b *Backend) stepLocked(s *session, on footing) {
	was := s.on.Load()
	if was != nil {
		if on.rev <= was.rev {
			return
		}
		on.old = append(slices.Clone(was.old), was.lease)
	}
	on.present = clientv3.Compare(clientv3.LeaseValue(b.keys.session(s.id)), "=", int64(on.lease))
	s.on.Store(&on)
}

// left notes that something of the session is on another etcd lease; cleared, that
// nothing is any more.
func (b *Backend) left(s *session, lease clientv3.LeaseID) {
	b.change(s, func(old []clientv3.LeaseID) []clientv3.LeaseID { return append(old, lease) })
}

func (b *Backend) cleared(s *session, lease clientv3.LeaseID) {
	b.change(s, func(old []clientv3.LeaseID) []clientv3.LeaseID {
		return slices.DeleteFunc(old, func(o clientv3.LeaseID) bool { return o == lease })
	})
}

func (b *Backend) change(s *session, f func([]clientv3.LeaseID) []clientv3.LeaseID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	on := *s.on.Load()
	on.old = f(slices.Clone(on.old))
	s.on.Store(&on)
}

// move takes a session, with all that it has, to an etcd lease of that term or later,
// which etcd is in. It goes on where an earlier attempt was cut short.
func (b *Backend) move(ctx context.Context, s *session, term uint64) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return fail(ctx, opRenew, context.Cause(ctx), true)
	}
	b.saw(term)
	if s.on.Load().term < term {
		if err := b.moveRecord(ctx, s, term); err != nil {
			return err
		}
	}
	// Nothing can be put on the old leases from here on: that is a condition of all puts.
	on := s.on.Load()
	for _, old := range on.old {
		if err := b.moveKeys(ctx, old, on.lease, term); err != nil {
			return err
		}
		b.cleared(s, old)
	}
	return nil
}

// moveRecord takes the record of a session to an etcd lease that is made for it.
func (b *Backend) moveRecord(ctx context.Context, s *session, term uint64) error {
	on := s.on.Load()
	lease, _, err := b.grantLease(ctx, s.ttl)
	if err != nil {
		return err
	}
	value := encode(sessionRecord{TTL: s.ttl.Milliseconds(), Term: term})
	resp, err := b.txn(ctx, opRenew, true, []clientv3.Cmp{on.present},
		[]clientv3.Op{clientv3.OpPut(b.keys.session(s.id), value, clientv3.WithLease(lease))}, nil)
	switch {
	case err != nil:
		if !mayHold(err) { // otherwise it may be the session's: the next renewal finds it
			b.revoker.revoke(lease)
		}
		return err
	case !resp.Succeeded: // it is over, or somebody else has moved it
		b.revoker.revoke(lease)
		return fail(ctx, opRenew, errDeposed, true)
	}
	b.step(s, footing{lease: lease, term: term, rev: resp.Header.Revision})
	return nil
}

// moveKeys takes all that is on an etcd lease to another. The old one is left to its end.
func (b *Backend) moveKeys(ctx context.Context, from, to clientv3.LeaseID, term uint64) error {
	rctx, cancel := b.request(ctx)
	defer cancel()
	resp, err := b.client.TimeToLive(rctx, from, clientv3.WithAttachedKeys())
	switch {
	case leaseGone(err):
		return nil
	case err != nil:
		return fail(ctx, opRenew, err, true)
	case resp.RaftTerm != term:
		return fail(ctx, opRenew, errDeposed, true)
	}
	for part := range slices.Chunk(resp.Keys, movesInOne) {
		ops := make([]clientv3.Op, len(part))
		for i, key := range part {
			here := clientv3.Compare(clientv3.LeaseValue(string(key)), "=", int64(from))
			ops[i] = clientv3.OpTxn([]clientv3.Cmp{here},
				[]clientv3.Op{clientv3.OpPut(string(key), "", clientv3.WithIgnoreValue(), clientv3.WithLease(to))}, nil)
		}
		if _, err := b.txn(ctx, opRenew, true, nil, ops, nil); err != nil {
			if leaseGone(err) {
				return &backend.UnavailableError{Backend: name, Op: opRenew, MayHold: true, Err: err}
			}
			return err
		}
	}
	return nil
}

// keepAliveSurely is keepAlive, with the proof that the answer counts.
func (b *Backend) keepAliveSurely(ctx context.Context, ids []clientv3.LeaseID) (map[clientv3.LeaseID]int64, error) {
	ttls, term, err := b.keepAlive(ctx, ids)
	if err != nil {
		return nil, err
	}
	now, err := b.readTerm(ctx, opRenew)
	switch {
	case err != nil:
		return nil, err
	case now != term && term != noTerm:
		return nil, fail(ctx, opRenew, errDeposed, true)
	}
	return ttls, nil
}
