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

// sessionLease is what a session hangs on: the session lease, and the term of etcd since which it does.
//
// The leader of etcd ends leases by its own clock. Take a leader that was stopped for longer than a
// TTL, and deposed in the meantime. When it resumes, all leases that were not renewed with it look
// expired to it. Before it learns that it was deposed it proposes their end, and once it follows
// the new leader it forwards those proposals. So leases end that were renewed at the new leader, up
// to a whole TTL early (etcd-io/etcd#15247, which was closed; but in 3.7.3 a member that has ticked
// a moment ago assumes that it still leads, and a member that is woken ticks first). For the same
// reason it acknowledges renewals that no other member knows of.
//
// So a renewal counts only
//   - if a read afterwards finds the term that the answer to the keep-alive was given in:
//     then no other member was the leader at that time;
//   - on an etcd lease that no leader of an earlier term has known. A session on an older
//     one moves to another with all that it owns, and is renewed when that is done. Until
//     then its time is what the earlier leader has acknowledged, which that leader keeps.
type sessionLease struct {
	lease clientv3.LeaseID
	// term is one that etcd had reached before the lease was made.
	term uint64
	rev  int64 // the revision at which the record of the session was written
	// present is the condition that the session exists, and is on this lease. All changes of the
	// session share one, so that each transaction checks it once.
	present clientv3.Cmp
	// old are etcd leases on which the session may have left something.
	old []clientv3.LeaseID
}

// movesInOne bounds the keys that move in one transaction.
const movesInOne = 60

// noTerm stands for a term where no lease was found.
const noTerm = math.MaxUint64

var (
	errDeposed = errors.New("the etcd member that answered may no longer have been the leader")
	errLeft    = errors.New("a lease of the session is not where the session is")
)

// saw records a term that etcd has reached.
func (b *Backend) saw(term uint64) {
	for {
		seen := b.term.Load()
		if term <= seen || b.term.CompareAndSwap(seen, term) {
			return
		}
	}
}

// reached returns a term that etcd has reached: the latest that was seen, or, if none was, the one
// that etcd reports.
func (b *Backend) reached(ctx context.Context) (uint64, error) {
	if term := b.term.Load(); term > 0 {
		return term, nil
	}
	return b.readTerm(ctx, opGrant)
}

// readTerm returns the term of etcd, by a linearizable read.
func (b *Backend) readTerm(ctx context.Context, op string) (uint64, error) {
	resp, err := b.get(ctx, op, b.keys.opened(""), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	b.saw(resp.Header.RaftTerm)
	return resp.Header.RaftTerm, nil
}

// stands reports whether a renewal in that term counts.
func (l *sessionLease) stands(term uint64) bool { return l.term >= term && len(l.old) == 0 }

// sessionLeaseOf reads the record of a session.
func sessionLeaseOf(kv *mvccpb.KeyValue) (time.Duration, sessionLease) {
	var r sessionRecord
	_ = json.Unmarshal(kv.Value, &r) // a TTL of 0 is confirmed by no request
	return time.Duration(r.TTL) * time.Millisecond, sessionLease{lease: clientv3.LeaseID(kv.Lease), term: r.Term, rev: kv.ModRevision}
}

// step records what a session hangs on, unless something newer is known.
func (b *Backend) step(s *session, on sessionLease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stepLocked(s, on)
}

func (b *Backend) stepLocked(s *session, on sessionLease) {
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

// changeOld changes the list of the etcd leases on which the session may have left something.
func (b *Backend) changeOld(s *session, f func([]clientv3.LeaseID) []clientv3.LeaseID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	on := *s.on.Load()
	on.old = f(slices.Clone(on.old))
	s.on.Store(&on)
}

// move takes a session, with all that it owns, to an etcd lease of that term or later, where that
// term is the one etcd is in. It resumes where an earlier attempt was cut short.
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
	// Nothing can be put on the old leases from here on: all puts have that as a condition.
	on := s.on.Load()
	for _, old := range on.old {
		if err := b.moveKeys(ctx, old, on.lease, term); err != nil {
			return err
		}
		b.changeOld(s, func(all []clientv3.LeaseID) []clientv3.LeaseID {
			return slices.DeleteFunc(all, func(o clientv3.LeaseID) bool { return o == old })
		})
	}
	return nil
}

// moveRecord moves the record of a session to a new etcd lease.
func (b *Backend) moveRecord(ctx context.Context, s *session, term uint64) error {
	on := s.on.Load()
	lease, _, err := b.grantLease(ctx, s.ttl)
	if err != nil {
		return err
	}
	value := encode(sessionRecord{TTL: s.ttl.Milliseconds(), Term: term})
	resp, err := b.txn(ctx, opRenew, true, []clientv3.Cmp{on.present},
		[]clientv3.Op{clientv3.OpPut(b.keys.session(s.id), value, clientv3.WithLease(lease))})
	switch {
	case err != nil:
		if !mayHold(err) { // otherwise it may be the session's: the next renewal finds it
			b.revoke(lease)
		}
		return err
	case !resp.Succeeded: // the session has ended, or another client has moved it
		b.revoke(lease)
		return fail(ctx, opRenew, errDeposed, true)
	}
	b.step(s, sessionLease{lease: lease, term: term, rev: resp.Header.Revision})
	return nil
}

// moveKeys moves all keys from one etcd lease to another. The old one is left to expire.
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
		if _, err := b.txn(ctx, opRenew, true, nil, ops); err != nil {
			if leaseGone(err) {
				return &backend.UnavailableError{Backend: name, Op: opRenew, MayHold: true, Err: err}
			}
			return err
		}
	}
	return nil
}

// keepAliveSurely is keepAlive with the proof that the answer counts.
func (b *Backend) keepAliveSurely(ctx context.Context, ids []clientv3.LeaseID) (map[clientv3.LeaseID]int64, error) {
	ttls, term, err := b.keepAlive(ctx, ids)
	if err != nil {
		return nil, err
	}
	now, err := b.readTerm(ctx, opRenew)
	switch {
	case err != nil:
		return nil, backend.PartDone(name, opRenew, err)
	case now != term && term != noTerm:
		return nil, fail(ctx, opRenew, errDeposed, true)
	}
	return ttls, nil
}
