package server

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"sync"

	"github.com/holdfast-io/holdfast/observe"
)

// boundedListener bounds the connections. At the bound a new connection replaces the one whose last request is
// the oldest, unless that connection is pinned. A listener that only stops to accept would keep holders out: whoever opens
// connections faster than they time out, and sends nothing on them or half a request, would have all of them.
type boundedListener struct {
	net.Listener
	s    *Server
	mu   sync.Mutex
	n    int
	idle list.List // of *conn, not pinned, the oldest request first
}

// Accept returns the next connection within the bound.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // net/http looks at it
		}
		c := &conn{Conn: accepted, l: l, uid: uidOf(accepted)}
		extra := l.add(c)
		if extra != nil {
			l.s.metrics.QuotaRejected(observe.QuotaConnections)
			_ = extra.Close()
		}
		if extra != c {
			return c, nil
		}
	}
}

// add counts a new connection, and returns the one to close for it: the new one, if all others are pinned.
func (l *boundedListener) add(c *conn) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	c.at = l.idle.PushBack(c)
	if l.n <= l.s.cfg.Limits.Connections {
		return nil
	}
	extra, _ := l.idle.Front().Value.(*conn)
	return extra
}

// conn is one connection. The listener's mutex guards its fields.
type conn struct {
	net.Conn
	l    *boundedListener
	uid  *uint32       // of the process at the other end; nil: unknown
	at   *list.Element // in idle; nil while it is pinned
	pins int           // requests for which it must stay
	gone bool
}

// Close stops counting the connection and closes it.
func (c *conn) Close() error {
	c.l.mu.Lock()
	if !c.gone {
		c.gone = true
		c.l.n--
		c.unlistLocked()
	}
	c.l.mu.Unlock()
	return c.Conn.Close() //nolint:wrapcheck // net/http looks at it
}

func (c *conn) unlistLocked() {
	if c.at != nil {
		c.l.idle.Remove(c.at)
		c.at = nil
	}
}

// touch notes that a request has arrived whose sender may send it. The receiver may be nil.
func (c *conn) touch() {
	if c == nil {
		return
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.at != nil {
		c.l.idle.MoveToBack(c.at)
	}
}

// pin keeps the connection from being replaced until the request has been served: it is a holder's, or
// was admitted for long.
func (r *request) pin() {
	c := r.conn
	if c == nil || r.pinned {
		return
	}
	r.pinned = true
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.pins++
	c.unlistLocked()
}

func (r *request) unpin() {
	if !r.pinned {
		return
	}
	c := r.conn
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.pins--; c.pins == 0 && !c.gone {
		c.at = c.l.idle.PushBack(c)
	}
}

// connKey is the context key of the connection of a request.
type connKey struct{}

// withConn is the ConnContext of the server.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}
