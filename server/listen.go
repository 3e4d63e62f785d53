package server

import (
	"net"
	"net/netip"
	"sync"

	"github.com/holdfast-io/holdfast/observe"
)

// limited gives a listener that closes connections over the limits at once, so that
// they cost nothing but the accept.
func (s *Server) limited(ln net.Listener) net.Listener {
	return &limitedListener{Listener: ln, s: s, perIP: make(map[netip.Addr]int)}
}

type limitedListener struct {
	net.Listener
	s     *Server
	mu    sync.Mutex
	all   int
	perIP map[netip.Addr]int
}

// Accept gives the next connection within the limits.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // net/http looks at it
		}
		ip := remoteIP(c)
		if quota, ok := l.admit(ip); !ok {
			l.s.metrics.QuotaRejected(quota)
			_ = c.Close()
			continue
		}
		return &limitedConn{Conn: c, leave: sync.OnceFunc(func() { l.leave(ip) })}, nil
	}
}

// remoteIP is the peer's address; zero, which has no limit of its own, where it is
// not an IP connection.
func remoteIP(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

func (l *limitedListener) admit(ip netip.Addr) (observe.Quota, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= l.s.cfg.Limits.Connections {
		return observe.QuotaConnections, false
	}
	if ip.IsValid() && l.perIP[ip] >= l.s.cfg.Limits.ConnectionsPerIP {
		return observe.QuotaPerIP, false
	}
	l.all++
	l.perIP[ip]++
	return "", true
}

func (l *limitedListener) leave(ip netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.perIP[ip]--; l.perIP[ip] == 0 {
		delete(l.perIP, ip)
	}
}

type limitedConn struct {
	net.Conn
	leave func()
}

// Close gives the place back.
func (c *limitedConn) Close() error {
	c.leave()
	return c.Conn.Close() //nolint:wrapcheck // net/http looks at it
}
