package etcdlock_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// leases returns the etcd leases that live for at most a minute.
func leases(t *testing.T, c *clientv3.Client) []clientv3.LeaseID {
	t.Helper()
	all, err := c.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []clientv3.LeaseID
	for _, l := range all.Leases {
		if info, err := c.TimeToLive(t.Context(), l.ID); err == nil && info.GrantedTTL <= 60 {
			out = append(out, l.ID)
		}
	}
	return out
}

// A leader that slept, and was deposed in the meantime, ends leases when it resumes that were
// renewed with the new one: all that it knows and that were not renewed with it. The test does the
// same itself, because that happens only one time in three.
func TestDeposedLeaderEndsLeases(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const ttl = time.Minute
	members := testserver.StartEtcd(t, testserver.EtcdOptions{Members: 3, Tick: 200}) // only the kill changes the leader
	b, other := direct(t, members), direct(t, members)
	s, os := leasetest.Session(t, b, ttl, nil), leasetest.Session(t, other, ttl, nil)
	acquire := func(req backend.AcquireRequest) backend.AcquireRequest {
		leasetest.Take(t, b, req)
		return req
	}
	own, shared := acquire(leasetest.Ask("own", s)), leasetest.Ask("shared", s)
	shared.Mode = backend.Shared
	acquire(shared)
	timed := leasetest.Ask("timed", s)
	timed.Timed, timed.TTL = true, ttl
	acquire(timed)
	asked := leasetest.Ask("asked", s)
	asked.Timed, asked.TTL = true, ttl/2
	acquire(asked)
	renewal := backend.RenewRequest{Session: s, Leases: []backend.TimedRenewal{{Name: timed.Name, Lease: timed.Lease, TTL: ttl}}}
	renew := func() {
		t.Helper()
		res := eventually(t, func(ctx context.Context) (backend.RenewResult, error) {
			res, err := b.Renew(ctx, renewal)
			if err == nil && errors.Is(res.Leases[0].Err, backend.ErrUnavailable) {
				err = res.Leases[0].Err
			}
			return res, err
		})
		if res.SessionLost || len(res.Lost) > 0 || res.Leases[0].Err != nil {
			t.Fatalf("a renewal says %+v", res)
		}
	}
	renew() // the timed lease has an etcd lease of its own now
	theirs := leasetest.Ask("theirs", os)
	leasetest.Take(t, other, theirs)
	waiting := leasetest.StartInsisting(t, b, leasetest.Ask("theirs", s))
	leasetest.Eventually(t, "in the queue", func() bool { return b.Waiting("theirs") == 1 })

	admin := raw(t, members)
	known := leases(t, admin)
	leader(t, members).Kill()
	renew()
	eventually(t, func(ctx context.Context) (backend.RenewResult, error) {
		return other.Renew(ctx, backend.RenewRequest{Session: os})
	})
	leasetest.Take(t, other, asked)
	for _, id := range known {
		eventually(t, func(ctx context.Context) (struct{}, error) {
			if _, err := admin.Revoke(ctx, id); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
				return struct{}{}, &backend.UnavailableError{Backend: "etcd", Err: err}
			}
			return struct{}{}, nil
		})
	}
	renew()
	for _, req := range []backend.AcquireRequest{own, shared, timed, asked, theirs} {
		info := eventually(t, func(ctx context.Context) (backend.LockInfo, error) { return b.Inspect(ctx, req.Name) })
		if len(info.Holders) != 1 || info.Holders[0].Lease != req.Lease {
			t.Errorf("%s is with %+v", req.Name, info.Holders)
		}
	}
	leasetest.Give(t, other, theirs)
	if r := <-waiting; r.Err != nil {
		t.Errorf("who was in the queue: %v", r.Err)
	}
}

// While a session moves, others continue to acquire under it. Nothing is left on the etcd lease
// that it leaves, nor put there afterwards.
func TestAcquiresWhileTheSessionMoves(t *testing.T) {
	t.Parallel()
	const moves = 40
	members := etcd(t)
	b, admin := direct(t, members), raw(t, members)
	s := kept(t, b)
	held := leasetest.Ask("held", s)
	leasetest.Take(t, b, held)
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	for n := range 8 {
		work.Go(func() {
			for ctx.Err() == nil {
				req := leasetest.Ask(strconv.Itoa(n%3), s)
				if n%4 == 1 {
					req.Mode = backend.Shared
				}
				if n%4 == 2 {
					req.Wait = false
				}
				_, err := b.Acquire(t.Context(), req)
				if errors.Is(err, backend.ErrHeld) {
					continue
				}
				if err == nil {
					err = b.Release(t.Context(), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: s})
				}
				if err != nil {
					t.Errorf("%s: %v", req.Name, err)
					return
				}
			}
		})
	}
	var left []clientv3.LeaseID
	for range moves {
		was, err := b.Move(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, was)
		// A renewal may report that a lease being released is gone.
		res, err := b.Renew(t.Context(), backend.RenewRequest{Session: s})
		ours := func(l backend.Loss) bool { return l.Lease == held.Lease }
		if err != nil || res.SessionLost || slices.ContainsFunc(res.Lost, ours) {
			t.Fatalf("a renewal says %+v, %v", res, err)
		}
	}
	stop()
	work.Wait()
	for _, id := range left {
		if info, err := admin.TimeToLive(t.Context(), id, clientv3.WithAttachedKeys()); err != nil || len(info.Keys) > 0 {
			t.Errorf("on the lease that the session left are %q, %v", info.Keys, err)
		}
	}
	leasetest.Give(t, b, held)
}

// An acquire that was prepared before its session moved, and is sent afterwards, goes to where the
// session is.
func TestAcquireFromBeforeTheMove(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	b, other, admin := direct(t, members), direct(t, members), raw(t, members)
	s, os := kept(t, b), kept(t, other)
	held := leasetest.Ask("lock", os)
	leasetest.Take(t, other, held)
	b.RideFor(time.Hour)
	first, second := leasetest.Ask("lock", s), leasetest.Ask("lock", s)
	gaveUp := leasetest.Start(t, b, first)
	leasetest.Eventually(t, "the first is in the queue", func() bool { return b.Waiting("lock") == 1 })
	done := leasetest.Start(t, b, second)
	leasetest.Eventually(t, "the second waits to travel with another", func() bool { return b.Riding("lock") == 1 })
	was, err := b.Move(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	b.RideFor(time.Millisecond)
	leasetest.Give(t, b, first) // and the second travels with that
	if r := <-gaveUp; !errors.Is(r.Err, backend.ErrLost) {
		t.Errorf("the first: %+v, %v", r.Grant, r.Err)
	}
	leasetest.Eventually(t, "the second is in the queue", func() bool { return b.Waiting("lock") == 1 })
	info, err := admin.TimeToLive(t.Context(), was, clientv3.WithAttachedKeys())
	if err != nil || len(info.Keys) > 0 {
		t.Errorf("on the lease that the session left are %q, %v", info.Keys, err)
	}
	leasetest.Give(t, other, held)
	if r := <-done; r.Err != nil {
		t.Errorf("the second: %v", r.Err)
	}
}

// oldTerm turns answers to keep-alives into those of a former leader.
type oldTerm struct {
	grpc.ClientStream
	on, gone *atomic.Bool
}

func (o oldTerm) RecvMsg(m any) error {
	err := o.ClientStream.RecvMsg(m)
	if resp, ok := m.(*pb.LeaseKeepAliveResponse); ok && err == nil && o.on.Load() {
		resp.Header.RaftTerm--
		if o.gone.Load() {
			resp.TTL = 0
		}
	}
	return err
}

// The answers of a leader that was deposed while it slept do not count: neither that a lease was
// renewed, nor that it does not exist.
func TestAnswersOfTheDeposed(t *testing.T) {
	t.Parallel()
	var on, gone atomic.Bool
	members := etcd(t)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: testserver.Endpoints(members), Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				s, err := next(ctx, desc, cc, method, opts...)
				return oldTerm{s, &on, &gone}, err
			})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	b, err := etcdlock.New(client, etcdlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	s := kept(t, b)
	timed := leasetest.Ask("timed", s)
	timed.Timed, timed.TTL = true, 10*time.Minute
	leasetest.Take(t, b, timed)
	ofTimed := backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: timed.Name, Lease: timed.Lease, TTL: timed.TTL}}}
	for _, says := range []bool{false, true} {
		gone.Store(says)
		on.Store(true)
		for _, req := range []backend.RenewRequest{{Session: s}, ofTimed} {
			if res, err := b.Renew(t.Context(), req); !errors.Is(err, backend.ErrUnavailable) {
				t.Errorf("gone is %v: %+v, %v", says, res, err)
			}
		}
		on.Store(false)
		for _, req := range []backend.RenewRequest{{Session: s}, ofTimed} {
			res, err := b.Renew(t.Context(), req)
			if err != nil || res.SessionLost || len(res.Leases) > 0 && res.Leases[0].Err != nil {
				t.Errorf("afterwards: %+v, %v", res, err)
			}
		}
	}
}
