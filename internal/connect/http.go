package connect

import (
	"net"
	"net/http"
	"net/url"
)

// HTTP is an HTTP transport for clients that send credentials, and it can be closed. net/http
// closes idle connections only: not that of a request which has just been given up, nor one that
// is being established, which would become idle later.
type HTTP struct {
	*http.Transport

	conns Set
}

// NewHTTP returns an HTTP transport. Of the environment's proxies it uses that for HTTPS, which
// gets a tunnel: a proxy of plain HTTP would read the credentials.
func NewHTTP(d *net.Dialer) *HTTP {
	h := new(HTTP)
	h.Transport = &http.Transport{Proxy: proxyOf, DialContext: h.conns.Dial(d)}
	return h
}

// Close closes all connections, also those that are still being established.
func (h *HTTP) Close() {
	h.CloseIdleConnections()
	h.conns.Close()
}

// Open returns the number of connections.
func (h *HTTP) Open() int { return h.conns.Len() }

// Stay is the CheckRedirect of a client that follows none: a redirect would carry the credentials
// to whatever host it names.
func Stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func proxyOf(r *http.Request) (*url.URL, error) {
	if r.URL.Scheme != "https" {
		return nil, nil //nolint:nilnil // no proxy: see http.Transport
	}
	return http.ProxyFromEnvironment(r) //nolint:wrapcheck // it stands in for it
}
