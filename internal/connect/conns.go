package connect

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"
)

// Set is the set of open connections of one client. A client library that is closed may wait for a server that is
// gone, or keep a connection that it was still establishing: Close ends them all the same. The zero value is an empty set. Its methods
// are safe for concurrent use.
type Set struct {
	mu    sync.Mutex
	open  map[*conn]struct{}
	dials map[*context.CancelFunc]struct{} // end the connections that are being made
	over  bool                             // connections that are added are closed
	last  time.Time                        // the latest deadline of a connection; zero: no bound
}

// conn is a connection in a Set.
type conn struct {
	net.Conn

	of *Set
}

// rawConn lets the client library check whether the other side is still there.
type rawConn struct {
	*conn
	syscall.Conn
}

// Add adds a connection to the set until it is closed, and returns the connection to use in its
// place. After Close or HangUp it closes the connection, and returns net.ErrClosed.
func (s *Set) Add(made net.Conn) (net.Conn, error) {
	c := &conn{Conn: made, of: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		_ = made.Close()
		return nil, net.ErrClosed
	}
	if s.open == nil {
		s.open = make(map[*conn]struct{})
	}
	s.open[c] = struct{}{}
	if raw, ok := made.(syscall.Conn); ok {
		return rawConn{c, raw}, nil
	}
	return c, nil
}

// Dialer makes a connection, as [net.Dialer.DialContext] does.
type Dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// Dial returns a DialContext of d whose connections are in the set. Close and HangUp end a
// connection that is being made, too.
func (s *Set) Dial(d *net.Dialer) Dialer { return s.through(d.DialContext) }

// Watch is Dial for the dialer of a client library; nil means that of package net. The kernel watches
// the connections, so that the loss of a host is noticed where nothing is sent to it: after 11 s.
func (s *Set) Watch(dial Dialer) Dialer {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return s.through(func(ctx context.Context, network, addr string) (net.Conn, error) {
		made, err := dial(ctx, network, addr)
		if tcp, ok := made.(*net.TCPConn); ok && err == nil {
			_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}) //nolint:mnd // see above
		}
		return made, err
	})
}

func (s *Set) through(dial Dialer) Dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer s.dialed(&cancel)
		if !s.dialing(&cancel) {
			return nil, net.ErrClosed
		}
		made, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return s.Add(made)
	}
}

// dialing records that a connection is being made. It reports false after Close or HangUp.
func (s *Set) dialing(cancel *context.CancelFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dials == nil {
		s.dials = make(map[*context.CancelFunc]struct{})
	}
	s.dials[cancel] = struct{}{}
	return !s.over
}

func (s *Set) dialed(cancel *context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.dials, cancel)
}

// end refuses further connections. Set.mu is held.
func (s *Set) end() {
	s.over = true
	for cancel := range s.dials {
		(*cancel)()
	}
}

// Len returns the number of open connections.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// Close closes all connections. Their users get an error.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
	for c := range s.open {
		_ = c.Conn.Close()
	}
	clear(s.open)
}

// HangUp bounds the further use of the connections to within, for a last message.
func (s *Set) HangUp(within time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
	s.last = time.Now().Add(within)
	for c := range s.open {
		_ = c.Conn.SetDeadline(s.last)
	}
}

// Close closes the connection and removes it from the set.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close() //nolint:wrapcheck // it stands for the connection
}

// SetDeadline sets both deadlines, after HangUp to no later time than its.
func (c *conn) SetDeadline(at time.Time) error { return c.until(at, c.Conn.SetDeadline) }

// SetReadDeadline is SetDeadline for reads.
func (c *conn) SetReadDeadline(at time.Time) error { return c.until(at, c.Conn.SetReadDeadline) }

// SetWriteDeadline is SetDeadline for writes.
func (c *conn) SetWriteDeadline(at time.Time) error { return c.until(at, c.Conn.SetWriteDeadline) }

func (c *conn) until(at time.Time, set func(time.Time) error) error {
	c.of.mu.Lock() // HangUp is before this or after it
	defer c.of.mu.Unlock()
	if last := c.of.last; !last.IsZero() && (at.IsZero() || at.After(last)) {
		at = last
	}
	return set(at)
}
