package server

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync"

	"github.com/holdfast-io/holdfast/observe"
)

// limited returns a listener that keeps the number of connections within the limits. It closes
// connections beyond them immediately, so that they cost nothing but the accept.
func (s *Server) limited(ln net.Listener) net.Listener {
	return &limitedListener{Listener: ln, s: s, all: newPeer(), perIP: make(map[netip.Addr]*peer)}
}

// limitedListener counts connections. At a limit, a new connection replaces one that serves no
// request: the one that has been idle for longest, and those that have carried no request of a
// lease holder first. So a client that opens connections and keeps them silent, or sends
// requests on them a byte at a time, does not keep a renewal out.
type limitedListener struct {
	net.Listener
	s     *Server
	mu    sync.Mutex
	all   *peer
	perIP map[netip.Addr]*peer
}

// peer has the connections from everywhere, or those from one address.
type peer struct {
	n int
	// strangers and holders are the connections that serve no request, of *limitedConn, longest
	// idle first.
	strangers, holders list.List
}

func newPeer() *peer { return new(peer) }

func (p *peer) idle(holder bool) *list.List {
	if holder {
		return &p.holders
	}
	return &p.strangers
}

// oldest returns the connection to close for a new one, or nil if there is none.
func (p *peer) oldest() *limitedConn {
	for _, l := range []*list.List{&p.strangers, &p.holders} {
		if front := l.Front(); front != nil {
			c, _ := front.Value.(*limitedConn)
			return c
		}
	}
	return nil
}

// Accept returns the next connection within the limits.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // net/http looks at it
		}
		c := &limitedConn{Conn: conn, l: l, ip: remoteIP(conn), uid: uidOf(conn)}
		closed, quota := l.admit(c)
		if closed != nil {
			_ = closed.Conn.Close()
		}
		if quota != "" {
			l.s.metrics.QuotaRejected(quota)
		}
		if closed == c {
			continue
		}
		return c, nil
	}
}

// remoteIP returns the address of the peer, of IPv6 the network. It is the zero address, which has no limit of its
// own, for a connection that is not over IP.
func remoteIP(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return network(a.AddrPort().Addr())
	}
	return netip.Addr{}
}

// admit counts a new connection. It returns the connection to close because of a limit, which
// may be the new one, and the limit.
func (l *limitedListener) admit(c *limitedConn) (*limitedConn, observe.Quota) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := l.perIP[c.ip]
	if from == nil {
		from = newPeer()
	}
	var closed *limitedConn
	var quota observe.Quota
	switch limits := l.s.cfg.Limits; {
	case c.ip.IsValid() && from.n >= limits.ConnectionsPerIP:
		closed, quota = from.oldest(), observe.QuotaPerIP
	case l.all.n >= limits.Connections:
		closed, quota = l.all.oldest(), observe.QuotaConnections
	}
	switch {
	case closed != nil:
		l.removeLocked(closed)
	case quota != "":
		return c, quota
	}
	l.perIP[c.ip] = from // it may have been deleted with its last connection
	c.peers = [2]*peer{l.all, from}
	for _, p := range c.peers {
		p.n++
	}
	l.restLocked(c)
	return closed, quota
}

// restLocked adds a connection to those that serve no request.
func (l *limitedListener) restLocked(c *limitedConn) {
	for i, p := range c.peers {
		c.at[i] = p.idle(c.holder).PushBack(c)
	}
}

// wakeLocked removes it from them.
func (l *limitedListener) wakeLocked(c *limitedConn) {
	for i, p := range c.peers {
		if c.at[i] != nil {
			p.idle(c.holder).Remove(c.at[i])
			c.at[i] = nil
		}
	}
}

// removeLocked stops counting a connection.
func (l *limitedListener) removeLocked(c *limitedConn) {
	if c.gone {
		return
	}
	c.gone = true
	c.client.connected(-1)
	l.wakeLocked(c)
	for _, p := range c.peers {
		p.n--
	}
	if c.peers[1].n == 0 {
		delete(l.perIP, c.ip)
	}
}

// limitedConn is one connection. The listener's mutex guards its fields.
type limitedConn struct {
	net.Conn
	l      *limitedListener
	ip     netip.Addr
	uid    *uint32  // of the process at the other end; nil: unknown
	peers  [2]*peer // all, and those from its address
	at     [2]*list.Element
	serves int     // requests
	holder bool    // it carried a request of a lease holder
	client *client // that sent the last request; nil: unknown, or one without bounds
	gone   bool
}

// Close stops counting the connection and closes it.
func (c *limitedConn) Close() error {
	c.l.mu.Lock()
	c.l.removeLocked(c)
	c.l.mu.Unlock()
	return c.Conn.Close() //nolint:wrapcheck // net/http looks at it
}

// serve marks the connection as serving a request, until the function that it returns is
// called. The receiver may be nil.
func (c *limitedConn) serve() func() {
	if c == nil {
		return func() {}
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.serves++; c.serves == 1 {
		c.l.wakeLocked(c)
	}
	return c.rest
}

func (c *limitedConn) rest() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.serves--; c.serves == 0 && !c.gone {
		c.l.restLocked(c)
	}
}

// holds marks the connection as a lease holder's. It is called while a request is served. The
// receiver may be nil.
func (c *limitedConn) holds() {
	if c == nil {
		return
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.holder = true
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
