package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

var errLost = status.Error(codes.Unavailable, "the answer was lost")

// intercepting returns a backend whose requests go through a function, which may send them.
func intercepting(t *testing.T, members []*testserver.Etcd, intercept func(method string, req any, send func() error) error) *etcdlock.Backend {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: testserver.Endpoints(members), Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				return intercept(method, req, func() error { return invoke(ctx, method, req, reply, cc, opts...) })
			})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	b, err := etcdlock.New(client, etcdlock.Config{MinTTL: time.Second, RequestTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// fate determines what happens to the next transaction that contains a text.
type fate struct {
	text string
	do   func(req *pb.TxnRequest, send func() error) error
	met  chan struct{} // closed when there was one
}

// postman returns a backend whose next transactions have a fate.
func postman(t *testing.T, members []*testserver.Etcd) (*etcdlock.Backend, func(text string, do func(*pb.TxnRequest, func() error) error) <-chan struct{}) {
	t.Helper()
	var next atomic.Pointer[fate]
	b := intercepting(t, members, func(_ string, req any, send func() error) error {
		f := next.Load()
		if txn, ok := req.(*pb.TxnRequest); ok && f != nil && strings.Contains(txn.String(), f.text) && next.CompareAndSwap(f, nil) {
			defer close(f.met)
			return f.do(txn, send)
		}
		return send()
	})
	return b, func(text string, do func(*pb.TxnRequest, func() error) error) <-chan struct{} {
		f := &fate{text, do, make(chan struct{})}
		next.Store(f)
		return f.met
	}
}

// A call of several requests of which a later one is refused says that it may have worked.
func TestRefusedAfterTheFirstPart(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	var refused atomic.Value // the method
	refused.Store("none")
	b := intercepting(t, members, func(method string, _ any, send func() error) error {
		if strings.HasSuffix(method, refused.Load().(string)) {
			return rpctypes.ErrGRPCPermissionDenied
		}
		return send()
	})
	s, elsewhere := kept(t, b), kept(t, direct(t, members))
	held := renewals(takeTimed(t, b, 2, 10*time.Minute))
	renew := func(id backend.SessionID, leases []backend.TimedRenewal) func() error {
		return func() error {
			_, err := b.Renew(t.Context(), backend.RenewRequest{Session: id, Leases: leases})
			return err
		}
	}
	for _, c := range []struct {
		what, refused string
		mayHold       bool
		do            func() error
	}{
		{"a session that is not known here", "/Range", false, renew(elsewhere, nil)},
		{"timed leases, which move, and such a session", "/Range", true, renew(elsewhere, held.Leases)},
		{"timed leases, which do not move any more", "/Range", true, renew("", held.Leases)},
		{"a session", "/Range", true, renew(s, nil)},
		{"the end of a session", "/LeaseRevoke", true, func() error { return b.EndSession(t.Context(), s) }},
	} {
		refused.Store(c.refused)
		err := c.do()
		refused.Store("none")
		if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || away.MayHold != c.mayHold || !errors.Is(err, backend.ErrRefused) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// lost executes a transaction and loses its answer.
func lost(_ *pb.TxnRequest, send func() error) error {
	if err := send(); err != nil {
		return err
	}
	return errLost
}

// A timed lease ends when the etcd lease ends that it is on. The first that was made for it had aged
// when another request for the same lease arrived late.
func TestTimedLeaseOnAnOlderEtcdLease(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	other, c := direct(t, members), raw(t, members)
	b, next := postman(t, members)
	before := leasetest.Ask("lock", kept(t, other))
	leasetest.Take(t, other, before)
	req := leasetest.Ask("lock", kept(t, b))
	req.Mode, req.Timed, req.TTL = backend.Shared, true, time.Hour
	entry := `{\"lease\":\"` + string(req.Lease)
	var late *pb.TxnRequest
	next(entry, func(txn *pb.TxnRequest, _ func() error) error {
		late = txn
		return errLost
	})
	if _, err := b.Acquire(t.Context(), req); !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("a lost request is %v", err)
	}
	leasetest.Give(t, other, before)
	const aged = 2 * time.Second // more than the whole seconds of etcd hide
	arrived := false
	next(entry, func(_ *pb.TxnRequest, send func() error) error {
		arrived = true
		time.Sleep(aged)
		resp, err := pb.NewKVClient(c.ActiveConnection()).Txn(t.Context(), late)
		if err != nil || !resp.Responses[0].GetResponseTxn().GetSucceeded() {
			t.Errorf("%v, %v: the late request has to join the queue", resp, err)
		}
		return send()
	})
	g, err := b.Acquire(t.Context(), req)
	if err != nil || !arrived {
		t.Fatalf("Acquire: %v; the late request arrived: %v", err, arrived)
	}
	entries, err := c.Get(t.Context(), etcdlock.DefaultPrefix+"/q/", clientv3.WithPrefix())
	if err != nil || len(entries.Kvs) != 1 {
		t.Fatalf("%v, %v: one entry has to be there", entries, err)
	}
	left, err := c.TimeToLive(t.Context(), clientv3.LeaseID(entries.Kvs[0].Lease))
	if err != nil {
		t.Fatal(err)
	}
	ends := time.Now().Add(time.Duration(left.TTL+1) * time.Second) // at the latest
	if over := g.Asked.Add(g.Left).Sub(ends); over > 0 || g.Left > req.TTL {
		t.Errorf("%s are left from %s on, %s longer than the etcd lease lives", g.Left, g.Asked, over)
	}
}

// etcd executes the first request for which it has no space: it reports the error, and raises the
// alarm, after it did so. The lease is held then.
func TestNoSpaceAfterTheFact(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	other := direct(t, members)
	b, next := postman(t, members)
	req := leasetest.Ask("lock", kept(t, b))
	next(string(req.Lease), func(_ *pb.TxnRequest, send func() error) error {
		if err := send(); err != nil {
			return err
		}
		return rpctypes.ErrGRPCNoSpace
	})
	if _, err := b.Acquire(t.Context(), req); err != nil {
		t.Error(err)
	}
	leasetest.Give(t, b, req)
	if r := <-leasetest.Start(t, other, leasetest.Ask("lock", kept(t, other))); r.Err != nil {
		t.Error(r.Err)
	}
}

// A renewal that would shorten a lease, and arrives late, does not end it before the time that a
// later renewal has reported.
func TestShorterRenewalComesLate(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	c := raw(t, members)
	b, next := postman(t, members)
	const long, short = time.Minute, 10 * time.Second
	req := timed("lock", long)
	leasetest.Take(t, b, req)
	renew := func(ttl time.Duration) backend.Renewal {
		t.Helper()
		res, err := b.Renew(t.Context(), backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: req.Name, Lease: req.Lease, TTL: ttl}}})
		if err != nil {
			t.Fatal(err)
		}
		return res.Leases[0]
	}
	if r := renew(long); r.Err != nil { // on an etcd lease of its own from here on
		t.Fatal(r.Err)
	}
	var late *pb.TxnRequest
	met := next(`\"ttl\":10000,`, func(txn *pb.TxnRequest, _ func() error) error {
		late = txn
		return errLost
	})
	if r := renew(short); !errors.Is(r.Err, backend.ErrUnavailable) {
		t.Fatalf("a lost renewal: %+v", r)
	}
	<-met
	if r := renew(long); r.Err != nil || r.Left <= short {
		t.Fatalf("%+v", r)
	}
	if resp, err := pb.NewKVClient(c.ActiveConnection()).Txn(t.Context(), late); err != nil || resp.Succeeded {
		t.Errorf("%v, %v: the lease is on an etcd lease that was made before it was renewed", resp, err)
	}
	info, err := b.Inspect(t.Context(), "lock")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Left <= short {
		t.Errorf("%+v, %v: told to have a minute", info, err)
	}
	if r := renew(long); r.Err != nil { // and it stays
		t.Error(r.Err)
	}
}

// A renewal for longer, of which the last request is late because its process was stopped before it, does not end a lease
// before the time that a renewal by another client has reported in the meantime.
func TestLongerRenewalComesLate(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	other := direct(t, members)
	b, next := postman(t, members)
	req := timed("lock", time.Minute)
	if _, err := b.Acquire(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	renew := func(by *etcdlock.Backend, ttl time.Duration) time.Duration {
		t.Helper()
		res, err := by.Renew(t.Context(), backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: req.Name, Lease: req.Lease, TTL: ttl}}})
		if err != nil || res.Leases[0].Err != nil {
			t.Errorf("%+v, %v", res, err)
			return 0
		}
		return res.Leases[0].Left
	}
	renew(b, time.Minute) // on an etcd lease of its own from here on
	stopped, wakes := make(chan struct{}), make(chan struct{})
	next(`\"ttl\":61000,`, func(_ *pb.TxnRequest, send func() error) error {
		close(stopped)
		<-wakes
		return send()
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		renew(b, time.Minute+time.Second)
	}()
	<-stopped
	time.Sleep(4 * time.Second) // more than the whole seconds of etcd hide
	asked := time.Now()
	ends := asked.Add(renew(other, time.Minute))
	close(wakes)
	<-done
	info, err := other.Inspect(t.Context(), "lock")
	if err != nil || len(info.Holders) != 1 {
		t.Fatalf("%+v, %v", info, err)
	}
	if early := time.Until(ends) - info.Holders[0].Left - time.Second; early > 0 { // Left is rounded down
		t.Errorf("the lease ends %s before what a holder was told", early)
	}
}

// A session that has moved, and whose answer was lost, continues, and ends with all that it owns.
func TestMoveWithoutAnswer(t *testing.T) {
	t.Parallel()
	members := etcd(t)
	other := direct(t, members)
	b, next := postman(t, members)
	s := kept(t, b)
	held := leasetest.Ask("held", s)
	leasetest.Take(t, b, held)
	next("/s/", lost)
	if _, err := b.Move(t.Context(), s); !errors.Is(err, backend.ErrUnavailable) {
		t.Fatalf("a move without an answer: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, wait := range []bool{true, false} {
		req := leasetest.Ask("more", s)
		req.Wait = wait
		if _, err := b.Acquire(ctx, req); err != nil {
			t.Fatalf("wait %v: %v", wait, err)
		}
		leasetest.Give(t, b, req)
	}
	if err := b.EndSession(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	leasetest.Eventually(t, "what the session had is free", func() bool {
		info, err := other.Inspect(t.Context(), "held")
		return err == nil && len(info.Holders) == 0
	})
}

// A lease that is released while etcd has no space is free, even if etcd cannot remember the
// release.
func TestNoSpaceToRemember(t *testing.T) {
	t.Parallel()
	members := testserver.StartEtcd(t, testserver.EtcdOptions{Quota: 4 << 20, NoFsync: true})
	b, other, c := direct(t, members), direct(t, members), raw(t, members)
	held := leasetest.Ask("lock", kept(t, b))
	leasetest.Take(t, b, held)
	os := kept(t, other)
	waits := leasetest.Start(t, other, leasetest.Ask("lock", os))
	leasetest.Eventually(t, "one waits", func() bool { return other.Waiting("lock") == 1 })
	for err := error(nil); !errors.Is(err, rpctypes.ErrNoSpace); {
		_, err = c.Put(t.Context(), "other", strings.Repeat("x", 1<<20))
		if err != nil && !errors.Is(err, rpctypes.ErrNoSpace) {
			t.Fatal(err)
		}
	}
	_, err := b.Acquire(t.Context(), leasetest.Ask("free", held.Session))
	if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || away.MayHold {
		t.Errorf("%v: it is not held", err)
	}
	err = b.Release(t.Context(), backend.ReleaseRequest{Name: "lock", Lease: held.Lease, Session: held.Session, Abandon: true})
	if !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("%v: nothing can be remembered", err)
	}
	r := <-waits
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	if err := other.EndSession(t.Context(), os); err != nil {
		t.Errorf("end: %v", err)
	}
	if info, err := b.Inspect(t.Context(), "lock"); err != nil || len(info.Holders) != 0 {
		t.Errorf("%+v, %v: its session was ended", info, err)
	}
}
