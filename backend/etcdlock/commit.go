package etcdlock

import (
	"context"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// batchSize bounds the requests in one transaction: with up to 8 operations in
	// each it stays below the 128 that etcd allows in all (--max-txn-ops counts the
	// outer operations and those of one inner transaction together).
	batchSize = 64
	// commitsAtOnce is how many transactions are under way at once. With two, a
	// request rarely waits for more than the rest of one, and etcd always has one to
	// work on.
	commitsAtOnce = 2
)

// committer puts the changes that many callers ask for at the same time into one
// transaction. Nothing is held back to collect more: what comes while transactions
// are under way goes with the next one.
type committer struct {
	b       *Backend
	mu      sync.Mutex
	pending []*change
	running int
}

// change is one request of one lock: a transaction of its own inside that of the
// batch.
type change struct {
	name      string // of the lock: one batch never has two of the same
	cmps      []clientv3.Cmp
	then, els []clientv3.Op
	done      chan committed // capacity 1
}

// committed is the answer to a change.
type committed struct {
	resp *pb.TxnResponse
	rev  int64 // of the transaction: the create revision of what it created
	err  error
}

// commit sends the change and waits for the answer. When ctx ends first the change
// may or may not be made, which the error says.
func (c *committer) commit(ctx context.Context, op string, ch *change) (*pb.TxnResponse, int64, error) {
	ch.done = make(chan committed, 1)
	c.mu.Lock()
	alone := c.running < commitsAtOnce // then nothing is pending
	if alone {
		c.running++
	} else {
		c.pending = append(c.pending, ch)
	}
	c.mu.Unlock()
	if alone {
		return c.commitAlone(ctx, op, ch)
	}
	select {
	case r := <-ch.done:
		return r.resp, r.rev, fail(ctx, op, r.err, true)
	case <-ctx.Done():
	}
	if c.withdraw(ch) {
		return nil, 0, fail(ctx, op, errUnsent, true)
	}
	select {
	case r := <-ch.done:
		if r.err == nil {
			return r.resp, r.rev, nil
		}
		return nil, 0, fail(ctx, op, r.err, true)
	default:
		return nil, 0, fail(ctx, op, context.Cause(ctx), true)
	}
}

// commitAlone sends the change from the caller's goroutine, which is faster than to
// have it sent. What has come meanwhile is sent by another one.
func (c *committer) commitAlone(ctx context.Context, op string, ch *change) (*pb.TxnResponse, int64, error) {
	rctx, cancel := c.b.request(ctx)
	defer cancel()
	resp, err := c.b.client.Txn(rctx).If(ch.cmps...).Then(ch.then...).Else(ch.els...).Commit()
	if batch := c.next(); batch != nil {
		c.b.calls.Go(func() { c.run(batch) }) // the caller is inside a call, so that Close waits
	}
	if err != nil {
		return nil, 0, fail(ctx, op, err, true)
	}
	return (*pb.TxnResponse)(resp), resp.Header.Revision, nil
}

// withdraw takes back a change that has not left yet.
func (c *committer) withdraw(ch *change) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, p := range c.pending {
		if p == ch {
			c.pending = append(c.pending[:i], c.pending[i+1:]...)
			return true
		}
	}
	return false
}

// run sends the batch, and then others until there is nothing to send.
func (c *committer) run(batch []*change) {
	for batch != nil {
		c.send(batch)
		batch = c.next()
	}
}

// next takes the oldest changes of different locks, or nil and ends the run.
func (c *committer) next() []*change {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		c.running--
		return nil
	}
	batch := make([]*change, 0, min(len(c.pending), batchSize))
	names := make(map[string]struct{}, cap(batch))
	rest := c.pending[:0]
	for _, ch := range c.pending {
		if _, taken := names[ch.name]; taken || len(batch) == batchSize {
			rest = append(rest, ch)
			continue
		}
		names[ch.name] = struct{}{}
		batch = append(batch, ch)
	}
	clear(c.pending[len(rest):])
	c.pending = rest
	return batch
}

// send commits a batch and tells everybody in it. Where one request spoils the whole
// transaction each is sent on its own.
func (c *committer) send(batch []*change) {
	ctx, cancel := c.b.request(c.b.base)
	defer cancel()
	if len(batch) == 1 {
		ch := batch[0]
		resp, err := c.b.client.Txn(ctx).If(ch.cmps...).Then(ch.then...).Else(ch.els...).Commit()
		if err != nil {
			ch.done <- committed{err: err}
			return
		}
		ch.done <- committed{resp: (*pb.TxnResponse)(resp), rev: resp.Header.Revision}
		return
	}
	ops := make([]clientv3.Op, len(batch))
	for i, ch := range batch {
		ops[i] = clientv3.OpTxn(ch.cmps, ch.then, ch.els)
	}
	resp, err := c.b.client.Txn(ctx).Then(ops...).Commit()
	if leaseGone(err) || is(err, rpctypes.ErrRequestTooLarge) || is(err, rpctypes.ErrTooManyOps) {
		for i := range batch {
			c.send(batch[i : i+1])
		}
		return
	}
	for i, ch := range batch {
		if err != nil {
			ch.done <- committed{err: err}
			continue
		}
		ch.done <- committed{resp: resp.Responses[i].GetResponseTxn(), rev: resp.Header.Revision}
	}
}
