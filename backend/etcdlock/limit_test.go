package etcdlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// Another limit is in force, of a waiter that stands behind more leases than are read to find out
// why the lock cannot be acquired.
func TestLimitBehindManyLeases(t *testing.T) {
	t.Parallel()
	const ahead, inForce, asked = 40, 3, 5
	members := etcd(t)
	b, other := direct(t, members), direct(t, members)
	s, os := kept(t, b), kept(t, other)
	for range ahead { // the first holds the lock
		leasetest.Start(t, other, leasetest.Ask("lock", os))
	}
	leasetest.Eventually(t, "in the queue", func() bool { return other.Waiting("lock") == ahead-1 })
	waiter := leasetest.Ask("lock", os)
	waiter.Mode, waiter.Limit = backend.Shared, inForce
	leasetest.Start(t, other, waiter)
	leasetest.Eventually(t, "in the queue", func() bool { return other.Waiting("lock") == ahead })
	for _, c := range []struct{ wait, timed bool }{{true, false}, {true, true}, {false, false}, {false, true}} {
		req := leasetest.Ask("lock", s)
		req.Mode, req.Limit, req.Wait, req.Timed = backend.Shared, asked, c.wait, c.timed
		if c.timed {
			req.TTL = time.Minute
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := b.Acquire(ctx, req)
		cancel()
		var limit *backend.LimitError
		if !errors.Is(err, backend.ErrLimit) || !errors.As(err, &limit) || limit.Asked != asked || limit.InForce != inForce {
			t.Fatalf("%+v: %v", c, err)
		}
	}
}

// A request that cannot join the queue, for a reason that cannot be read, is repeated after pauses.
func TestObstacleThatCannotBeRead(t *testing.T) {
	t.Parallel()
	const (
		tries = 9                      // of which the first four follow each other immediately
		least = 310 * time.Millisecond // 10 ms before the fifth, and twice as much before each of the others
	)
	b, next := postman(t, testserver.StartEtcd(t, testserver.EtcdOptions{NoFsync: true}))
	req := leasetest.Ask("lock", kept(t, b))
	req.Mode = backend.Shared
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	entry := `{\"lease\":\"` + string(req.Lease)
	n := 0
	var refused func(*pb.TxnRequest, func() error) error
	refused = func(txn *pb.TxnRequest, send func() error) error {
		if n++; n == tries {
			cancel()
		} else {
			next(entry, refused)
		}
		in := txn.Failure[0].GetRequestTxn()
		in.Compare = append(in.Compare, &pb.Compare{
			Key: []byte("never"), Result: pb.Compare_GREATER, Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{},
		})
		return send()
	}
	next(entry, refused)
	begun := time.Now()
	if _, err := b.Acquire(ctx, req); err == nil || ctx.Err() == nil {
		t.Errorf("Acquire after %d requests: %v", n, err)
	}
	if d := time.Since(begun); d < least {
		t.Errorf("%d requests in %s; there have to be pauses of %s between them", n, d, least)
	}
}
