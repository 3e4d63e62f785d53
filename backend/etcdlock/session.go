package etcdlock

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
)

// session is what this backend value knows of a session.
type session struct {
	id   backend.SessionID
	ttl  time.Duration
	life context.Context         //nolint:containedctx // ends when the session is known to have ended, and with Close
	stop context.CancelCauseFunc // ends life
	// on is what the session hangs on now. It is written with Backend.mu held.
	on   atomic.Pointer[sessionLease]
	turn chan struct{} // capacity 1: held by the caller that moves the session

	// Guarded by Backend.mu.
	over     bool
	lost     func(backend.Loss) // may be nil
	renewals int
}

// sessionRecord is the value of a session's key.
type sessionRecord struct {
	TTL int64 `json:"ttl"` // milliseconds
	// Term is that of sessionLease.
	Term uint64 `json:"term,omitempty"`
}

// brokenRecord is the value of the key that notifies a session of a broken lease, of the tombstone of
// that lease, and of a lock's note.
type brokenRecord struct {
	Lock   string   `json:"lock,omitempty"`
	Leases []string `json:"leases,omitempty"`
	Reason string   `json:"reason,omitempty"`
	Actor  string   `json:"actor,omitempty"`
	At     int64    `json:"at"` // wall-clock milliseconds, for people
}

// OpenSession makes the session, or confirms it and extends it. A session keeps the TTL that it was
// opened with.
//
// Errors: *InvalidError, also for a TTL other than that of the open session; ErrSessionLost for an
// ID that has ended; *UnavailableError; ErrClosed; ctx's cause.
func (b *Backend) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	ctx, leave, err := b.enter(ctx, req.Validate(b.caps))
	if err != nil {
		return err
	}
	defer leave()
	s, err := b.session(ctx, req.ID)
	switch {
	case err == nil:
		return b.confirm(ctx, s, req)
	case !errors.Is(err, backend.ErrSessionLost) || b.dead.Has(req.ID):
		return err
	}
	return b.create(ctx, req)
}

// confirm extends a session that exists.
func (b *Backend) confirm(ctx context.Context, s *session, req backend.SessionRequest) error {
	if s.ttl != req.TTL {
		return &backend.InvalidError{Field: "ttl", Value: req.TTL.String(), Bound: s.ttl.String() + ", which the session was opened with"}
	}
	if _, err := b.renewSession(ctx, s); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if req.Lost != nil {
		s.lost = req.Lost
	}
	return nil
}

// create makes a session that does not exist. Each attempt makes an etcd lease; the transaction
// makes one of them the session's.
func (b *Backend) create(ctx context.Context, req backend.SessionRequest) error {
	const op = "open a session"
	memory, err := b.memoryLease(ctx)
	if err != nil {
		return err
	}
	lease, term, err := b.grantLease(ctx, req.TTL)
	if err != nil {
		return err
	}
	key, opened := b.keys.session(req.ID), b.keys.opened(req.ID)
	value := encode(sessionRecord{TTL: req.TTL.Milliseconds(), Term: term})
	resp, err := b.txn(ctx, op, true,
		[]clientv3.Cmp{absent(key), absent(opened)},
		[]clientv3.Op{
			clientv3.OpPut(key, value, clientv3.WithLease(lease)),
			clientv3.OpPut(opened, "", clientv3.WithLease(memory.id)),
		},
	)
	switch {
	case err != nil:
		if leaseGone(err) {
			memory.gone.Store(true)
		}
		if !mayHold(err) { // otherwise it may be the session's: it is left to expire
			b.revoke(lease)
		}
		return err
	case resp.Succeeded:
		b.adopt(req.ID, req.TTL, sessionLease{lease: lease, term: term, rev: resp.Header.Revision}, resp.Header.Revision, req.Lost)
		return nil
	}
	b.revoke(lease)
	s, err := b.session(ctx, req.ID) // made by an attempt whose answer was lost, or by another backend value
	if err != nil {
		return err
	}
	return b.confirm(ctx, s, req)
}

// session finds a session, even one that another backend value opened. Errors: ErrSessionLost if there is
// none; as for fail.
func (b *Backend) session(ctx context.Context, id backend.SessionID) (*session, error) {
	b.mu.Lock()
	s, ok := b.sessions[id]
	b.mu.Unlock()
	if ok {
		return s, nil
	}
	if b.dead.Has(id) {
		return nil, backend.ErrSessionLost
	}
	resp, err := b.get(ctx, "look up a session", b.keys.session(id))
	if err != nil {
		return nil, err
	}
	if len(resp.Kvs) == 0 {
		return nil, backend.ErrSessionLost
	}
	ttl, on := sessionLeaseOf(resp.Kvs[0])
	return b.adopt(id, ttl, on, resp.Header.Revision, nil), nil
}

// adopt records a session that was alive at the revision, and watches it.
func (b *Backend) adopt(id backend.SessionID, ttl time.Duration, on sessionLease, rev int64, lost func(backend.Loss)) *session {
	b.mu.Lock()
	s, ok := b.sessions[id]
	if !ok {
		s = &session{id: id, ttl: ttl, turn: make(chan struct{}, 1)}
		s.life, s.stop = context.WithCancelCause(b.base)
		b.sessions[id] = s
	}
	b.stepLocked(s, on)
	if lost != nil {
		s.lost = lost
	}
	b.mu.Unlock()
	if !ok {
		b.background(func(context.Context) { b.watchSession(s, rev+1) })
	}
	return s
}

// end records that the session has ended for good. If tell is set, it calls the session's loss
// callback.
func (b *Backend) end(s *session, tell bool) {
	b.mu.Lock()
	if s.over {
		b.mu.Unlock()
		return
	}
	s.over = true
	s.stop(backend.ErrSessionLost)
	delete(b.sessions, s.id)
	lost := s.lost
	b.mu.Unlock()
	b.dead.Add(s.id)
	b.slots.ended(s)
	if tell && lost != nil {
		lost(backend.Loss{Session: s.id, Cause: backend.CauseSession})
	}
}

const opEnd = "end a session"

// EndSession ends the session, with its leases and places in the queue, in two requests, and one more for each
// etcd lease on which a move of the session may have left something.
// The ID is dead afterwards. If the session is gone already, EndSession succeeds.
//
// Errors: *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Backend) EndSession(ctx context.Context, id backend.SessionID) error {
	ctx, leave, err := b.enter(ctx, backend.ValidateSessionID(id))
	if err != nil {
		return err
	}
	defer leave()
	b.mu.Lock()
	s := b.sessions[id]
	if s != nil {
		s.lost = nil // the caller that ends it need not be told
		on := s.on.Load()
		b.ending[id] = append(append(b.ending[id], on.lease), on.old...)
	}
	b.mu.Unlock()
	resp, err := b.deleteSession(ctx, id)
	if err != nil {
		return err
	}
	b.mu.Lock()
	all := b.ending[id] // also when an earlier attempt got no further than the record
	for _, kv := range resp.Responses[0].GetResponseDeleteRange().PrevKvs {
		// That of a session that another value opened, or that moved, where the answer was lost, is not known here.
		all = append(all, clientv3.LeaseID(kv.Lease))
	}
	slices.Sort(all)
	b.ending[id] = slices.Compact(all)
	leases := slices.Clone(b.ending[id])
	b.mu.Unlock()
	for _, lease := range leases {
		if err := b.revokeNow(ctx, lease); err != nil {
			return backend.PartDone(name, opEnd, err)
		}
	}
	if s != nil {
		b.end(s, false)
	}
	b.mu.Lock()
	delete(b.ending, id)
	b.mu.Unlock()
	b.dead.Add(id)
	return nil
}

// deleteSession deletes the record of the session, and remembers that its ID was used. The record goes before the
// leases: watchers then know that these did not expire.
func (b *Backend) deleteSession(ctx context.Context, id backend.SessionID) (*pb.TxnResponse, error) {
	ops := []clientv3.Op{
		clientv3.OpDelete(b.keys.session(id), clientv3.WithPrevKV()),
		clientv3.OpDelete(b.keys.broken(id, "\x01"), clientv3.WithRange(b.keys.sessionAll(id).to)),
	}
	memory, err := b.memoryLease(ctx)
	var resp *pb.TxnResponse
	if err == nil {
		remember := clientv3.OpPut(b.keys.opened(id), "", clientv3.WithLease(memory.id))
		resp, err = b.txn(ctx, opEnd, true, nil, append(ops, remember))
		if leaseGone(err) {
			memory.gone.Store(true)
		}
	}
	if noSpace(err) { // it is remembered since it was opened, for as long as a late request can live
		resp, err = b.txn(ctx, opEnd, true, nil, ops)
	}
	return resp, err
}

// watchSession reports breaks of the session's leases, and its end in etcd, until it has ended.
func (b *Backend) watchSession(s *session, from int64) {
	sp := b.keys.sessionAll(s.id)
	for failures := 0; ; failures++ {
		ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(s.life))
		for resp := range b.client.Watch(ctx, sp.from, clientv3.WithRange(sp.to), clientv3.WithRev(from)) {
			if resp.Err() != nil {
				break
			}
			failures = 0
			b.sessionChanged(s, resp.Events)
		}
		cancel()
		if !retry.Pause(s.life, delay(failures)) {
			return
		}
		// This is what was missed. Losses are reported once more, which is allowed.
		if next, err := b.readSession(s.life, s); err == nil {
			from = next.rev + 1
			if next.gone {
				b.end(s, true)
			}
			b.tell(s, next.lost)
		}
	}
}

func (b *Backend) sessionChanged(s *session, events []*clientv3.Event) {
	for _, ev := range events {
		lease, _ := b.keys.parseSession(string(ev.Kv.Key))
		switch {
		case lease == "" && ev.Type == clientv3.EventTypeDelete:
			b.end(s, true)
		case lease != "" && ev.Type == clientv3.EventTypePut:
			b.tell(s, []backend.Loss{lossOf(s.id, lease, ev.Kv.Value)})
		}
	}
}

// tell passes losses to the session's callback.
func (b *Backend) tell(s *session, losses []backend.Loss) {
	b.mu.Lock()
	lost := s.lost
	b.mu.Unlock()
	if lost == nil {
		return
	}
	for _, l := range losses {
		lost(l)
	}
}

func lossOf(id backend.SessionID, lease backend.LeaseID, value []byte) backend.Loss {
	var r brokenRecord
	_ = json.Unmarshal(value, &r) // without its reason it is still a loss
	return backend.Loss{Session: id, Lease: lease, Cause: backend.CauseBroken, Reason: r.Reason}
}

// sessionState is a session as etcd has it.
type sessionState struct {
	rev  int64
	term uint64 // of etcd, when it was read
	gone bool
	lost []backend.Loss
}

func (b *Backend) readSession(ctx context.Context, s *session) (sessionState, error) {
	sp := b.keys.sessionAll(s.id)
	resp, err := b.get(ctx, "read a session", sp.from, clientv3.WithRange(sp.to))
	if err != nil {
		return sessionState{}, err
	}
	st := sessionState{rev: resp.Header.Revision, term: resp.Header.RaftTerm, gone: true}
	for _, kv := range resp.Kvs {
		lease, ok := b.keys.parseSession(string(kv.Key))
		switch {
		case !ok:
		case lease == "":
			_, on := sessionLeaseOf(kv)
			if st.gone = on.lease == clientv3.NoLease; !st.gone {
				b.step(s, on) // another client may have moved it
			}
		default:
			st.lost = append(st.lost, lossOf(s.id, lease, kv.Value))
		}
	}
	return st, nil
}
