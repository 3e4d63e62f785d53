package consullock

import (
	"context"
	"errors"
	"net/http/httptrace"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/seqlock"
)

// hear reports the losses that are written to the session's notices, and the end of the session,
// with which the key is deleted.
func (s *session) hear() {
	var index uint64
	for s.Life.Err() == nil {
		_ = try(s.Life, func() error {
			now, err := s.read(s.Life, index)
			if err == nil {
				index = nextIndex(index, now)
			}
			return err
		})
	}
}

// read reads the notices, once they differ from those at the index, and reports the new ones.
// ErrSessionLost: the session is gone. The answer must come from a leader that is certain to be the
// leader, and to know what was written: a newly elected one knows less for a moment.
func (s *session) read(ctx context.Context, index uint64) (uint64, error) {
	ctx, cancel := patiently(ctx, index, longPoll)
	defer cancel()
	opts := consistent(ctx)
	opts.WaitIndex, opts.WaitTime = index, longPoll
	pair, meta, err := s.b.polls.KV().Get(s.b.noticeKey(s.uuid), opts)
	if err != nil {
		return 0, err
	}
	if pair == nil || pair.Session != s.uuid {
		s.Expire(backend.CauseGone)
		return 0, backend.ErrSessionLost
	}
	return meta.LastIndex, s.take(ctx, seqlock.Notices(pair.Value))
}

// take reports what is in the notices, and checks for breaks whose notices were dropped before they
// were read.
func (s *session) take(ctx context.Context, notices []seqlock.Notice) error {
	var broken []backend.Loss
	for _, n := range notices {
		broken = append(broken, backend.Loss{Lease: n.Lease, Cause: backend.CauseBroken, Reason: n.Reason})
	}
	s.tell(broken...)
	return s.inbox.Read(notices, func() error {
		for keys := range slices.Chunk(s.leases.Held(), maxTxnOps) {
			gone, err := s.absent(ctx, keys)
			if err != nil {
				return err
			}
			s.tellGone(gone)
		}
		return nil
	})
}

// absent returns those of the leases whose keys do not exist, or are not the session's. The keys
// must fit into one transaction.
func (s *session) absent(ctx context.Context, keys []seqlock.Key) ([]seqlock.Key, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	var ops api.KVTxnOps
	for _, k := range keys {
		ops = append(ops, &api.KVTxnOp{Verb: api.KVCheckSession, Key: s.b.leaseKey(k), Session: s.uuid})
	}
	_, err := s.b.txn(ctx, ops)
	refusal, ok := errors.AsType[*txnError](err)
	if !ok {
		return nil, err
	}
	var gone []seqlock.Key
	for _, e := range refusal.errs {
		one := &txnError{api.TxnErrors{e}}
		if e.OpIndex < len(keys) && isRefused(one, becauseAbsent, becauseOther) {
			gone = append(gone, keys[e.OpIndex])
		}
	}
	return gone, nil
}

const (
	// answerTime is how long an answer may take. A longer wait means that the connection is
	// silently dead.
	answerTime = 10 * time.Second
	// turnTime is how long a request may wait for a connection if all are busy.
	turnTime = time.Minute
)

var errSilent = errors.New("no answer came in time")

// answering bounds a request that Consul answers immediately. Each has such a bound: a caller may
// wait for a lock for as long as it likes, but must not wait for an answer that never comes.
func answering(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(turnTime, func() { cancel(errSilent) })
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { late.Reset(answerTime) }})
	return ctx, func() { late.Stop(); cancel(nil) }
}

// patiently bounds a query that Consul keeps open for wait, if there is an index: Consul adds a
// sixteenth to that (developer.hashicorp.com/consul/api-docs/features/blocking).
func patiently(ctx context.Context, index uint64, wait time.Duration) (context.Context, context.CancelFunc) {
	if index == 0 {
		return answering(ctx)
	}
	return context.WithTimeout(ctx, wait+wait/16+answerTime)
}

// nextIndex returns the index to wait behind. An index that went back starts again:
// developer.hashicorp.com/consul/api-docs/features/blocking.
func nextIndex(old, now uint64) uint64 {
	if now < old {
		return 0
	}
	return max(1, now)
}

// try calls f until it succeeds or ctx has ended, and returns its error.
func try(ctx context.Context, f func() error) error {
	for failures := 0; ; failures++ {
		if err := f(); err == nil || !pause(ctx, failures) {
			return err
		}
	}
}

// pause waits before the next try, longer each time. It returns false if ctx has ended.
func pause(ctx context.Context, failures int) bool {
	const first, most = 20 * time.Millisecond, 2 * time.Second
	return retry.Pause(ctx, retry.Delay(failures, first, most))
}

// tellGone reports that leases are gone, except those that were released in the meantime.
func (s *session) tellGone(gone []seqlock.Key) {
	var losses []backend.Loss
	for _, k := range gone {
		if s.leases.EntryOf(k) != "" {
			losses = append(losses, backend.Loss{Lease: k.ID, Cause: backend.CauseGone})
		}
	}
	s.tell(losses...)
}

// tell reports lost leases, each once, and clears what exists of them. A break names the lease and not the
// key: there may be one that was made after it.
func (s *session) tell(losses ...backend.Loss) {
	var made []seqlock.Key
	for _, loss := range losses {
		s.leases.Report(loss, func(l *lease) {
			if l.Entry != "" || l.Unsure {
				made = append(made, l.Key)
			}
		})
	}
	if len(made) > 0 {
		s.b.sessions.Go(func() { s.clearAfter(made) })
	}
}

// clearAfter clears those of the lost leases that have a key.
func (s *session) clearAfter(lost []seqlock.Key) {
	for keys := range slices.Chunk(lost, maxTxnOps) {
		var gone []seqlock.Key
		err := try(s.Life, func() error {
			var err error
			gone, err = s.absent(s.Life, keys)
			return err
		})
		for _, k := range keys {
			if err == nil && !slices.Contains(gone, k) {
				s.clear(k)
			}
		}
	}
}
