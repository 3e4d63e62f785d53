package zklock_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

var errCut = errors.New("the network is down")

// cutter is a network that goes down immediately after an answer that contains the mark.
type cutter struct {
	mark  []byte
	armed atomic.Bool
	down  atomic.Bool
}

func (c *cutter) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	if c.down.Load() {
		return nil, errCut
	}
	conn, err := dial(network, address, timeout)
	if err != nil {
		return nil, err
	}
	return &cutConn{conn, c}, nil
}

func dial(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return new(net.Dialer).DialContext(ctx, network, address)
}

type cutConn struct {
	net.Conn
	cut *cutter
}

func (c *cutConn) Read(p []byte) (int, error) {
	if c.cut.down.Load() {
		return 0, errCut
	}
	n, err := c.Conn.Read(p)
	if c.cut.armed.Load() && bytes.Contains(p[:n], c.cut.mark) {
		c.cut.down.Store(true)
		_ = c.Close()
	}
	return n, err
}

func (c *cutConn) Write(p []byte) (int, error) {
	if c.cut.down.Load() {
		return 0, errCut
	}
	return c.Conn.Write(p)
}

// cutting opens a backend whose network can be cut.
func cutting(t *testing.T, server *testserver.ZooKeeperServer, mark string) (*zklock.Backend, *cutter) {
	t.Helper()
	c := &cutter{mark: []byte(mark)}
	cfg := config(t, server.Addr())
	cfg.Dial = c.dial
	return opened(t, cfg), c
}

// TestRefusedAfterTheCreate: the create is answered, and the next request is refused: the lease may
// be held.
func TestRefusedAfterTheCreate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		mark  string // of the last answer that arrives
		limit int    // requested; 3 is in force
	}{
		"the read of the queue is refused":    {mark: "/locks/n/s.3.1.", limit: 3},
		"the delete for its limit is refused": {mark: "s.3.1.", limit: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := zookeeper()
			b, cut := cutting(t, server, test.mark)
			other := closing(t, server)
			permit := func(id backend.SessionID, limit int) backend.AcquireRequest {
				req := leasetest.Ask("n", id)
				req.Mode, req.Limit = backend.Shared, limit
				return req
			}
			leasetest.Take(t, other, permit(leasetest.Session(t, other, leasetest.Long, nil), 3))
			req := permit(leasetest.Session(t, b, leasetest.Long, nil), test.limit)
			cut.armed.Store(true)
			_, err := b.Acquire(leasetest.Within(t), req)
			cut.armed.Store(false)
			away, ok := errors.AsType[*backend.UnavailableError](err)
			if !ok || !cut.down.Load() {
				t.Fatalf("acquire: %v; want an UnavailableError", err)
			}
			info, err := other.Inspect(leasetest.Within(t), "n")
			if err != nil || !slices.ContainsFunc(info.Holders, func(h backend.Holder) bool { return h.Lease == req.Lease }) {
				t.Fatalf("%+v, %v; the lease is held", info, err)
			}
			if !away.MayHold {
				t.Errorf("the lease is held; the error is %v with MayHold false", away)
			}
			cut.down.Store(false)
		})
	}
}

// TestEndIsNotConfirmed: the network is down when a session is ended. EndSession says that the
// leases may be held, until the session has expired in the ensemble.
func TestEndIsNotConfirmed(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	server := zookeeper()
	b, cut := cutting(t, server, "")
	other := closing(t, server)
	id := leasetest.Session(t, b, 10*time.Second, nil)
	leasetest.Take(t, b, leasetest.Ask("n", id))
	cut.down.Store(true)
	err := b.EndSession(leasetest.Within(t), id)
	if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
		t.Fatalf("the end of a session that the ensemble did not hear of: %v; want an UnavailableError with MayHold", err)
	}
	cut.down.Store(false)
	leasetest.Eventually(t, "the end is confirmed", func() bool {
		err := b.EndSession(leasetest.Within(t), id)
		info, failed := other.Inspect(leasetest.Within(t), "n")
		switch {
		case errors.Is(failed, backend.ErrUnavailable): // on a busy machine
			return false
		case failed != nil:
			t.Fatal(failed)
		case err == nil && len(info.Holders) > 0:
			t.Fatalf("the session has ended, and has the lock: %+v", info.Holders)
		case err != nil && !errors.Is(err, backend.ErrUnavailable):
			t.Fatal(err)
		}
		return err == nil
	})
}

// TestEndIsConfirmed: two ends of one session succeed, and one of a session that was never opened.
func TestEndIsConfirmed(t *testing.T) {
	t.Parallel()
	server := zookeeper()
	b, other := closing(t, server), closing(t, server)
	id := leasetest.Session(t, b, leasetest.Long, nil)
	leasetest.Take(t, b, leasetest.Ask("n", id))
	ended := make(chan error, 2)
	for range cap(ended) {
		go func() { ended <- b.EndSession(leasetest.Within(t), id) }()
	}
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if info, err := other.Inspect(leasetest.Within(t), "n"); err != nil || len(info.Holders) > 0 {
		t.Errorf("%+v, %v; want no holder", info, err)
	}
	if err := b.EndSession(leasetest.Within(t), backend.NewSessionID()); err != nil {
		t.Error(err)
	}
}
