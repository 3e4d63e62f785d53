package remotelock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// A client may know several servers of one store. It uses one of them until that does not answer, or
// cannot serve it, and then the next one. Leases, places in the queue and tokens are the store's, so the
// client keeps them.

// endpoint is one server. The zero values of its fields are those of one that was not used yet.
type endpoint struct {
	base   *url.URL
	socket string

	// Without TLS, the first answer shows whether the server speaks HTTP/2. With TLS the handshake does.
	door  chan struct{} // capacity 1: a mutex for the fields below; a value is in it while it is locked
	known bool          // the clients below are of the right protocol
	until time.Time     // no new attempt before: it did not answer in HTTP/2
	pause time.Duration // between the last two attempts
	polls *client       // for acquires that wait, and events
	calls *client       // for everything else
	// first are the clients for HTTP/1 that were used before HTTP/2 was found to work.
	first []*client
	ready atomic.Bool // once, at least, or it is the only one; also read without the door
}

func newEndpoint(base *url.URL, socket string, conf *tls.Config) *endpoint {
	return &endpoint{
		base: base, socket: socket, door: make(chan struct{}, 1), known: base.Scheme == "https",
		polls: newClient(socket, conf, false), calls: newClient(socket, conf, false),
	}
}

func (e *endpoint) close() {
	e.door <- struct{}{}
	defer func() { <-e.door }()
	for _, c := range append(e.first, e.polls, e.calls) {
		c.transport.Close()
	}
}

// endpoints are the servers of a Backend.
type endpoints struct {
	all []*endpoint

	mu    sync.Mutex
	at    int
	store string // ID of the store, from the first answer that had one; never changes then
}

func (s *endpoints) current() *endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[s.at]
}

// leave makes the next server the current one, unless another request did that already. It returns the next
// one, or nil if there is no change.
func (s *endpoints) leave(e *endpoint) *endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[s.at] == e && len(s.all) > 1 {
		s.at = (s.at + 1) % len(s.all)
		return s.all[s.at]
	}
	return nil
}

// send sends the request to the current server. If there was no connection to it, or it turns out that it
// cannot be used, send tries each of the others: nothing was sent then. Otherwise the next request goes to
// another server. A wait that ends before the server had to answer is no reason for that: the next server may hang,
// and the renewals would go there.
func (b *Backend) send(ctx context.Context, c call) (*http.Response, error) {
	for tries := len(b.servers.all); ; tries-- {
		e := b.servers.current()
		asked := time.Now()
		res, sent, err := b.sendTo(ctx, e, c, tries > 1)
		early := sent && ctx.Err() != nil && time.Since(asked) < c.waits
		if err != nil && !early || err == nil && res.StatusCode == http.StatusServiceUnavailable {
			if next := b.servers.leave(e); next != nil {
				b.logLeft(ctx, e, next, res, err)
			}
		}
		if err == nil || sent || tries == 1 || ctx.Err() != nil {
			return res, err
		}
	}
}

// logLeft logs that the next requests go to another server, and why.
func (b *Backend) logLeft(ctx context.Context, left, next *endpoint, res *http.Response, err error) {
	if ctx.Err() != nil {
		return // the caller has given up, which says nothing about the server
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // without the URL, which may have a lease ID
	}
	why := slog.Any("error", err)
	if err == nil {
		why = slog.String("status", res.Status)
	}
	b.log.LogAttrs(ctx, slog.LevelDebug, "remotelock: a server cannot be used, and the next one is tried",
		slog.String("server", left.base.Redacted()), slog.String("next", next.base.Redacted()), why)
}

// firstAnswer is how long a server that was not used yet may take to answer, if there are others.
const firstAnswer = 4 * time.Second

var errNoAnswer = errors.New("the server does not answer")

// sendTo sends the request to a server, over HTTP/2 if the server speaks it. It reports whether the
// request may have been sent. others: there are servers that were not tried.
func (b *Backend) sendTo(ctx context.Context, e *endpoint, c call, others bool) (*http.Response, bool, error) {
	polls, calls, err := b.meet(ctx, e, others)
	if err != nil {
		return nil, false, err
	}
	req, err := b.request(ctx, e, c)
	if err != nil {
		return nil, true, err // no other server would do
	}
	if c.waits > 0 {
		calls = polls
	}
	res, err := calls.Do(req)
	if err != nil {
		return nil, !connect.IsDial(err), err //nolint:wrapcheck // failed maps it
	}
	if err := b.servers.compare(e, res); err != nil {
		_ = res.Body.Close()
		return nil, !errors.Is(err, errNotServed), err
	}
	return res, true, nil
}

// meet returns the client for polls and the client for everything else. Before the first use of one of several
// servers it finds out whether the server answers and is ready.
func (b *Backend) meet(ctx context.Context, e *endpoint, others bool) (*client, *client, error) {
	if others && !e.ready.Load() { // from here on: calls that come at the same time do not give it that time one after the other
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, firstAnswer, errNoAnswer)
		defer cancel()
	}
	select {
	case e.door <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	defer func() { <-e.door }()
	if !e.known && time.Now().After(e.until) {
		if err := e.settle(ctx); err != nil {
			return nil, nil, err
		}
	}
	if !e.ready.Load() && len(b.servers.all) > 1 {
		res, err := e.calls.get(ctx, e.base.String()+"/readyz") //nolint:bodyclose // it is closed
		if err != nil {
			return nil, nil, err
		}
		if res.StatusCode != http.StatusOK {
			return nil, nil, fmt.Errorf("the server answered %s", res.Status) //nolint:err113 // for people
		}
		if err := b.servers.compare(e, res); err != nil {
			return nil, nil, err
		}
	}
	e.ready.Store(true)
	return e.polls, e.calls, nil
}

// errNotServed is in the error of a server that did not serve a request because the client uses another store.
var errNotServed = errors.New("it did not serve the request")

// compare refuses the answer of a server whose store is not that of the answers before: two stores would grant a lock
// twice. The address may lead to another server now, or the server may have been started on another store. It never
// accepts the other store: leases in the first one may be held by other clients for any time. A server whose store has
// no ID is trusted.
func (s *endpoints) compare(e *endpoint, res *http.Response) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := res.Header.Get(wire.HeaderStore)
	if s.store == "" {
		s.store = id
	}
	if id == "" || id == s.store {
		return nil
	}
	refused := &backend.RefusedError{
		Backend: name, Reason: fmt.Sprintf("%s has the store %.80q now, and this client uses the store %.80q", e.base.Host, id, s.store),
		Remedy: "let all addresses lead to servers of one store, and restart this program if the store was replaced",
	}
	if res.StatusCode == http.StatusPreconditionFailed {
		refused.Err = errNotServed
	}
	return refused
}

// storeID returns the ID of the store; empty if it is not known.
func (s *endpoints) storeID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store
}

// client is an HTTP client with connections of its own.
type client struct {
	*http.Client
	transport *connect.HTTP
}

// get sends a request of our own, without credentials. The body of the answer was read.
func (c *client) get(ctx context.Context, to string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to, http.NoBody)
	if err != nil {
		return nil, err //nolint:wrapcheck // failed maps it
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, err //nolint:wrapcheck // failed maps it
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer)) // so that the connection can be reused
	return res, res.Body.Close()                                    //nolint:wrapcheck // failed maps it
}

// newClient returns a client. socket is the path of a Unix socket, or empty.
func newClient(socket string, conf *tls.Config, clearHTTP2 bool) *client {
	t := connect.NewHTTP(&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second})
	if dial := t.DialContext; socket != "" {
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, "unix", socket) }
	}
	t.TLSClientConfig, t.TLSHandshakeTimeout = conf.Clone(), 5*time.Second
	t.MaxIdleConnsPerHost = 64
	t.IdleConnTimeout = 45 * time.Second // earlier than the server's, so that no half-closed connection is used
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second}
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP2(true)
	if clearHTTP2 {
		t.Protocols.SetUnencryptedHTTP2(true)
	} else {
		t.Protocols.SetHTTP1(true)
	}
	return &client{transport: t, Client: &http.Client{Transport: t, CheckRedirect: connect.Stay}}
}

// settle tries HTTP/2 with the server. An error means that the server is unavailable. While the
// server does not answer in HTTP/2, HTTP/1 is used, and HTTP/2 is tried again later: the server
// may have been restarting, and a thousand waiters would otherwise use a thousand connections
// for ever.
func (e *endpoint) settle(ctx context.Context) error {
	const (
		soonest, latest = 2 * time.Second, time.Minute
		enough          = 3 * time.Second // an HTTP/1 server answers the first bytes immediately
	)
	asks := newClient(e.socket, nil, true)
	probing, cancel := context.WithTimeout(ctx, enough)
	defer cancel()
	_, err := asks.get(probing, e.base.String()+"/healthz") //nolint:bodyclose // it is closed
	if err == nil {
		e.first = []*client{e.polls, e.calls}
		e.polls, e.calls, e.known = newClient(e.socket, nil, true), asks, true
		return nil
	}
	asks.transport.Close()
	if connect.IsDial(err) || ctx.Err() != nil {
		return err
	}
	e.pause = min(max(2*e.pause, soonest), latest)
	e.until = time.Now().Add(e.pause)
	return nil
}
