package etcdlock

import (
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// nestFor is how many batches are not tried flat after a flat one failed.
	nestFor = 16
	// flatSize bounds the conditions and the operations of a flat transaction: with the inner ones
	// it stays below the 128 that etcd allows.
	flatSize = 112
	// sessionsAmong is how many of the first conditions are searched for a duplicate: the changes
	// of a session share the condition that the session exists.
	sessionsAmong = 8
)

// send commits a batch and answers every change in it. If one request spoils the whole transaction,
// each is sent on its own.
func (c *committer) send(ctx context.Context, batch []*change) {
	if len(batch) == 1 {
		c.sendOne(ctx, batch[0])
		return
	}
	if c.nest == 0 {
		if resp, err := c.b.commit(ctx, flatten(batch)); err != nil || resp.Succeeded {
			c.settle(batch, resp, err)
			return
		}
		c.nest = nestFor
	} else {
		c.nest--
	}
	ops := make([]clientv3.Op, len(batch))
	for i, ch := range batch {
		ch.flat = false
		ops[i] = clientv3.OpTxn(ch.cmps, ch.then, ch.els)
	}
	resp, err := c.b.commit(ctx, txn{then: ops})
	c.settle(batch, resp, err)
}

func (c *committer) sendOne(ctx context.Context, ch *change) {
	resp, err := c.b.commit(ctx, txn{ch.cmps, ch.then, ch.els})
	if err != nil {
		ch.done <- committed{err: err}
		return
	}
	ch.done <- committed{resp: resp, rev: resp.Header.Revision}
}

// flatten combines the changes that have nothing to do if their conditions are not met into one
// transaction without inner ones: either all conditions are met, or nothing is done. Inner
// transactions cost etcd, and its client, as much again as what is in them.
func flatten(batch []*change) txn {
	var t txn
	for i, ch := range batch {
		left := len(batch) - i
		ch.flat = len(ch.els) == 0 && len(t.cmps)+len(ch.cmps) <= flatSize && len(t.then)+len(ch.then)+left <= flatSize
		if !ch.flat {
			t.then = append(t.then, clientv3.OpTxn(ch.cmps, ch.then, ch.els))
			continue
		}
		for _, cmp := range ch.cmps {
			if !slices.Contains(t.cmps[:min(len(t.cmps), sessionsAmong)], cmp) {
				t.cmps = append(t.cmps, cmp)
			}
		}
		t.then = append(t.then, ch.then...)
	}
	return t
}

// settle answers every change in a batch.
func (c *committer) settle(batch []*change, resp *pb.TxnResponse, err error) {
	if leaseGone(err) || is(err, rpctypes.ErrRequestTooLarge) || is(err, rpctypes.ErrTooManyOps) || is(err, rpctypes.ErrDuplicateKey) {
		for _, ch := range batch {
			c.sendOne(c.b.base, ch)
		}
		return
	}
	if err != nil {
		for _, ch := range batch {
			ch.done <- committed{err: err}
		}
		return
	}
	rest := resp.Responses
	for _, ch := range batch {
		answer, n := &pb.TxnResponse{Header: resp.Header, Succeeded: true}, 1
		if ch.flat {
			n = len(ch.then)
			answer.Responses = rest[:n:n]
		} else {
			answer = rest[0].GetResponseTxn()
		}
		rest = rest[n:]
		ch.done <- committed{resp: answer, rev: resp.Header.Revision}
	}
}
