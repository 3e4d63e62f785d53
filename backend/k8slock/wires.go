package k8slock

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// wires is a transport that can be closed. net/http closes idle connections only: one that
// was still being made for a request that has ended becomes idle later.
type wires struct {
	*http.Transport

	dialer net.Dialer

	mu     sync.Mutex
	open   map[*wire]struct{}
	closed bool
}

// wire is a connection that is open.
type wire struct {
	net.Conn

	of *wires
}

func (w *wires) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := w.dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err //nolint:wrapcheck // it stands in for the dialer
	}
	c := &wire{Conn: conn, of: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	w.open[c] = struct{}{}
	return c, nil
}

// Close closes the connection.
func (c *wire) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close() //nolint:wrapcheck // it stands in for the connection
}

// close closes all connections, and those that are still being made.
func (w *wires) close() {
	w.CloseIdleConnections()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for c := range w.open {
		_ = c.Conn.Close()
	}
}
