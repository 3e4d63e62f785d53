package embedded

import (
	"context"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc"
)

// keyspace is the KV of a client within the process. Over a network all requests end before etcd closes its
// database. Within the process a read that came later would take what is left in memory for the data, or
// dereference nil, which ends the process. So keyspace ends all reads before etcd is closed.
type keyspace struct {
	pb.KVClient
	stopping <-chan struct{} // closed when etcd stops by itself

	life context.Context //nolint:containedctx // it ends the contexts of the requests
	end  context.CancelFunc

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
}

func newKeyspace(s *etcdserver.EtcdServer) *keyspace {
	k := &keyspace{KVClient: adapter.KvServerToKvClient(v3rpc.NewQuotaKVServer(s)), stopping: s.StoppingNotify()}
	k.life, k.end = context.WithCancel(context.Background())
	return k
}

// close ends the requests, and waits for that.
func (k *keyspace) close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.end()
	k.calls.Wait()
}

// Range reads keys.
func (k *keyspace) Range(ctx context.Context, in *pb.RangeRequest, opts ...grpc.CallOption) (*pb.RangeResponse, error) {
	return unlessClosed(ctx, k, func(ctx context.Context) (*pb.RangeResponse, error) { return k.KVClient.Range(ctx, in, opts...) })
}

// Txn reads and writes keys.
func (k *keyspace) Txn(ctx context.Context, in *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	return unlessClosed(ctx, k, func(ctx context.Context) (*pb.TxnResponse, error) { return k.KVClient.Txn(ctx, in, opts...) })
}

func unlessClosed[R any](ctx context.Context, k *keyspace, call func(context.Context) (*R, error)) (*R, error) {
	if !k.enter() {
		return nil, rpctypes.ErrGRPCStopped
	}
	defer k.calls.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.life, cancel)()
	answer, err := call(ctx)
	if err != nil && k.life.Err() != nil {
		return nil, rpctypes.ErrGRPCStopped
	}
	return answer, err
}

// enter counts a request, unless etcd stops.
func (k *keyspace) enter() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.stopping:
		return false
	default:
	}
	if k.closed {
		return false
	}
	k.calls.Add(1)
	return true
}
