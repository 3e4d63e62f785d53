package embedded

import (
	"context"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc"
)

// etcd's client within the process has a stream of watches that holds next to nothing:
// client and server are each one goroutine that both sends and receives, so that when
// both have something to say each waits for the other to listen, for ever. Then no watch
// is told anything any more. Over a network buffers are between them. So here what the
// client says is kept until the server listens: then the client always does.

// watcher gives a Watcher for a client within the process.
func watcher(s *etcdserver.EtcdServer, c *clientv3.Client) clientv3.Watcher {
	return clientv3.NewWatchFromWatchClient(patientWatches{adapter.WatchServerToWatchClient(v3rpc.NewWatchServer(s))}, c)
}

// patientWatches makes streams whose Send does not wait.
type patientWatches struct{ pb.WatchClient }

// Watch opens a stream, which ends with ctx.
func (w patientWatches) Watch(ctx context.Context, opts ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	ctx, cancel := context.WithCancel(ctx)
	inner, err := w.WatchClient.Watch(ctx, opts...)
	if err != nil {
		cancel()
		return nil, err //nolint:wrapcheck // it stands for the stream
	}
	s := &patientStream{Watch_WatchClient: inner, more: make(chan struct{}, 1)}
	go func() {
		defer cancel()
		s.pass(ctx)
	}()
	return s, nil
}

// patientStream is a stream of watches.
type patientStream struct {
	pb.Watch_WatchClient

	more chan struct{} // capacity 1: queue has something, or the end came

	mu    sync.Mutex
	queue []*pb.WatchRequest // bounded by the watches that there are: each sends two requests at most
	ended bool               // CloseSend was called
	err   error              // of a Send that was passed on
}

// Send keeps the request, and passes it on when the server listens. It gives the error
// of one before it.
func (s *patientStream) Send(r *pb.WatchRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.queue = append(s.queue, r)
	s.wake()
	return nil
}

// CloseSend ends the sending, after what is kept.
func (s *patientStream) CloseSend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.wake()
	return nil
}

func (s *patientStream) wake() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// pass passes on what is kept, until the stream ends.
func (s *patientStream) pass(ctx context.Context) {
	over := s.Context().Done() // of the stream: the server may end it too
	for {
		s.mu.Lock()
		queue, ended := s.queue, s.ended
		s.queue = nil
		s.mu.Unlock()
		for _, r := range queue {
			if err := s.Watch_WatchClient.Send(r); err != nil {
				s.mu.Lock()
				s.err = err
				s.mu.Unlock()
				return
			}
		}
		if ended {
			_ = s.Watch_WatchClient.CloseSend() // it closes a channel
			select {
			case <-over:
			case <-ctx.Done():
			}
			return
		}
		select {
		case <-s.more:
		case <-over:
			return
		case <-ctx.Done():
			return
		}
	}
}
