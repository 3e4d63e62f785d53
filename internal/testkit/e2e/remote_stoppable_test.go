package e2e_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/server"
)

// stoppable is a server that can be cut off as by kill -9: its connections are reset, and
// nothing more is sent to the backend.
type stoppable struct {
	url, addr string
	kill      func()
}

func newStoppable(t *testing.T, store *memlock.Store, addr string) *stoppable {
	t.Helper()
	b := &severed{Backend: store.Open()}
	srv, err := server.New(b, server.Config{Limits: limits()})
	if err != nil {
		t.Fatal(err)
	}
	var ln net.Listener
	leasetest.Eventually(t, "the port is free", func() bool {
		ln, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
		return err == nil
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	tracked := &trackedListener{Listener: ln}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, tracked) }()
	end := sync.OnceFunc(func() {
		cancel()
		<-ended //nolint:errcheck // a server that was cut off ends with an error
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return &stoppable{addr: ln.Addr().String(), url: "holdfast://" + ln.Addr().String(), kill: func() {
		b.cut.Store(true)
		ln.Close()
		tracked.reset()
		end()
	}}
}

// severed is a real backend. Once it is cut, no call reaches it.
type severed struct {
	backend.Backend
	cut atomic.Bool
}

func (s *severed) Release(ctx context.Context, r backend.ReleaseRequest) error {
	if s.cut.Load() {
		return backend.ErrClosed
	}
	return s.Backend.Release(ctx, r)
}

func (s *severed) EndSession(ctx context.Context, id backend.SessionID) error {
	if s.cut.Load() {
		return backend.ErrClosed
	}
	return s.Backend.EndSession(ctx, id)
}

func (s *severed) Renew(ctx context.Context, r backend.RenewRequest) (backend.RenewResult, error) {
	if s.cut.Load() {
		return backend.RenewResult{}, backend.ErrClosed
	}
	return s.Backend.Renew(ctx, r)
}

// trackedListener can reset all its connections.
type trackedListener struct {
	net.Listener
	conns atomic.Pointer[[]net.Conn]
}

func (l *trackedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	for {
		old := l.conns.Load()
		var all []net.Conn
		if old != nil {
			all = append(all, *old...)
		}
		all = append(all, c)
		if l.conns.CompareAndSwap(old, &all) {
			return c, nil
		}
	}
}

func (l *trackedListener) reset() {
	all := l.conns.Load()
	if all == nil {
		return
	}
	for _, c := range *all {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		c.Close()
	}
}
