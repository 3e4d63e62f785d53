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

// The client of etcd within the process has a stream of watches that buffers almost nothing.
// Client and server are each one goroutine that both sends and receives, so when both have
// something to send, each waits for the other to receive: a deadlock, after which no watch
// receives an event. Over a network there are buffers between them. Here, therefore, the
// requests of the client are queued until the server receives them, so that the client always
// receives.

// watcher returns a Watcher for a client within the process.
func watcher(s *etcdserver.EtcdServer, c *clientv3.Client) clientv3.Watcher {
	return clientv3.NewWatchFromWatchClient(patientWatches{adapter.WatchServerToWatchClient(v3rpc.NewWatchServer(s))}, c)
}

// patientWatches makes streams whose Send does not block.
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

	more chan struct{} // capacity 1: queue has something, or CloseSend was called

	mu    sync.Mutex
	queue []*pb.WatchRequest // bounded by the number of watches: each sends two requests at most
	ended bool               // CloseSend was called
	err   error              // of a Send to the server
}

// Send queues the request. It is sent when the server receives. Send returns the error of an
// earlier request.
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

// CloseSend ends the sending, after the queued requests.
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

// pass sends the queued requests, until the stream ends.
func (s *patientStream) pass(ctx context.Context) {
	over := s.Context().Done() // the context of the stream: the server may end it too
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
