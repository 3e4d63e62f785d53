package k8slock

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"

	"github.com/holdfast-io/holdfast/internal/connect"
)

// link sends requests with the credentials of a rest.Config. client-go adds the credentials. The
// connections are not client-go's: it shares them in the process, closes none, and takes 45 seconds
// to detect a dead one.
type link struct {
	next  http.RoundTripper // client-go's, on conns
	conns *connect.HTTP
	cert  *certificate  // nil: not of files
	slots chan struct{} // the requests that may wait for a login program; nil: there is none
}

// newLink changes config.
func newLink(config *rest.Config) (*link, error) {
	// HTTP/2 on one connection, if the server supports it; pings soon detect when that is dead.
	const idle, ping, logins = 90 * time.Second, 5 * time.Second, 256
	t := connect.NewHTTP(&net.Dialer{Timeout: attempt, KeepAlive: ping})
	t.ForceAttemptHTTP2, t.IdleConnTimeout, t.MaxIdleConnsPerHost, t.TLSHandshakeTimeout = true, idle, 16, attempt
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: ping, PingTimeout: ping}
	t.DisableCompression = config.DisableCompression
	if config.Proxy != nil {
		t.Proxy = config.Proxy
	}
	dialer := connrotation.NewDialer(t.DialContext)
	config.Dial = dialer.DialContext
	how, err := config.TransportConfig()
	if err != nil {
		return nil, fmt.Errorf("user: %w", err)
	}
	t.DialContext = how.DialHolder.Dial // a login program's closes connections whose certificate it has replaced
	if t.TLSClientConfig, err = transport.TLSConfigFor(how); err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	l := &link{conns: t}
	if how.TLS.ReloadTLSFiles {
		l.cert = &certificate{load: t.TLSClientConfig.GetClientCertificate, replaced: dialer.CloseAll}
		t.TLSClientConfig.GetClientCertificate = l.cert.current
	}
	if config.ExecProvider != nil || config.AuthProvider != nil {
		l.slots = make(chan struct{}, logins)
	}
	if l.next, err = transport.HTTPWrappersForConfig(how, t); err != nil {
		return nil, fmt.Errorf("user: %w", err)
	}
	return l, nil
}

// CloseIdleConnections is that of the connections: client-go's transports have none.
func (l *link) CloseIdleConnections() { l.conns.CloseIdleConnections() }

// RoundTrip sends the request.
func (l *link) RoundTrip(req *http.Request) (*http.Response, error) {
	send := l.next.RoundTrip
	if l.slots != nil {
		send = l.login
	}
	res, err := send(req)
	if err == nil && res.StatusCode == http.StatusUnauthorized && l.cert != nil {
		_, _ = l.cert.current(nil) // a file that cannot be read is reported by the next handshake
	}
	return res, err
}

// login sends the request in a goroutine. client-go runs the login program before it, or after the
// answer, for as long as the program takes: the request ends with its context nevertheless.
func (l *link) login(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	type answer struct {
		res *http.Response
		err error
	}
	answered, sent := make(chan answer), req.Clone(ctx)
	go func() {
		defer func() { <-l.slots }()
		res, err := l.next.RoundTrip(sent) // sends nothing if ctx has ended
		select {
		case answered <- answer{res, hidden(err)}:
		case <-ctx.Done():
			if err == nil {
				_ = res.Body.Close()
			}
		}
	}()
	select {
	case a := <-answered:
		return a.res, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

var errPrinted = errors.New("the login program did not print an ExecCredential of its apiVersion")

// hidden returns err without what the login program printed. That may be a token, and client-go
// quotes it if it cannot decode it.
func hidden(err error) error {
	if err != nil && strings.Contains(err.Error(), "decoding stdout") {
		return errPrinted
	}
	return err
}

// certificate is a client certificate of files. A connection keeps the one of its handshake, and
// the API server refuses its requests once that has expired.
type certificate struct {
	load     func(*tls.CertificateRequestInfo) (*tls.Certificate, error) // reads the files at most once a second
	replaced func()                                                      // closes the connections

	mu   sync.Mutex
	used [][]byte
}

// current returns the certificate that is in the files now. If it is another one than before, all
// connections are closed.
func (c *certificate) current(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	now, err := c.load(info)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	changed := c.used != nil && !slices.EqualFunc(c.used, now.Certificate, bytes.Equal)
	c.used = now.Certificate
	c.mu.Unlock()
	if changed {
		c.replaced()
	}
	return now, nil
}
