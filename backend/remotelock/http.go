package remotelock

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/conns"
	"github.com/holdfast-io/holdfast/internal/wire"
)

// call is one request.
type call struct {
	op, name string // for error texts
	// The transport repeats a GET whose connection ends. It must not repeat another method: the
	// error of the last attempt would hide that the first one may have worked.
	method  string
	path    string // escaped
	query   url.Values
	header  http.Header
	in, out any
	waits   time.Duration // how long the server may delay the answer
	changes bool          // it changes leases: without an answer, the outcome is unknown
	refusal *wire.Problem // receives the server's refusal; nil: not wanted
}

// maxAnswer bounds the bytes that are read of an answer.
const maxAnswer = 64 << 20

// do sends the request and decodes the answer. The error is one of package backend, or the
// cause of the end of ctx.
func (b *Backend) do(ctx context.Context, c call) (http.Header, error) {
	ctx, done, err := b.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	within, cancel := context.WithTimeout(ctx, c.waits+answerIn)
	defer cancel()
	res, err := b.send(within, c)
	if err != nil {
		return nil, b.failed(ctx, c, err)
	}
	defer res.Body.Close() //nolint:errcheck // it was read, or is abandoned
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, b.failed(ctx, c, err)
	}
	return res.Header, b.decode(c, res, body)
}

func (b *Backend) decode(c call, res *http.Response, body []byte) error {
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		if c.out == nil {
			return nil
		}
		if err := json.Unmarshal(body, c.out); err != nil {
			return b.unavailable(c.op, c.changes, errAnswer)
		}
		return nil
	}
	p := wire.Problem{Status: res.StatusCode}
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err == nil && kind == wire.ContentTypeProblem {
		if err := json.Unmarshal(body, &p); err != nil {
			return b.unavailable(c.op, c.changes, errAnswer)
		}
	}
	p.Status = res.StatusCode
	if c.refusal != nil {
		*c.refusal = p
	}
	return b.problem(c, p, res.Header)
}

// send sends the request, over HTTP/2 if the server speaks it.
func (b *Backend) send(ctx context.Context, c call) (*http.Response, error) {
	polls, calls, err := b.clients(ctx)
	if err != nil {
		return nil, err
	}
	req, err := b.request(ctx, c)
	if err != nil {
		return nil, err
	}
	if c.waits > 0 {
		return polls.Do(req) //nolint:wrapcheck // failed maps it
	}
	return calls.Do(req) //nolint:wrapcheck // failed maps it
}

func (b *Backend) request(ctx context.Context, c call) (*http.Request, error) {
	var body io.Reader
	if c.in != nil {
		encoded, err := json.Marshal(c.in)
		if err != nil {
			return nil, err //nolint:wrapcheck // failed maps it
		}
		body = bytes.NewReader(encoded)
	}
	to := b.base.String() + c.path
	if len(c.query) > 0 {
		to += "?" + c.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, c.method, to, body)
	if err != nil {
		return nil, err //nolint:wrapcheck // failed maps it
	}
	maps.Copy(req.Header, c.header)
	if c.in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	bearer, err := b.token.get()
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	return req, err
}

// client is an HTTP client with connections of its own.
type client struct {
	*http.Client
	transport *conns.HTTP
}

// close ends all connections.
func (c *client) close() { c.transport.Close() }

// newClient returns a client.
func (b *Backend) newClient(conf *tls.Config, clearHTTP2 bool) *client {
	t := conns.NewHTTP(&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second})
	if dial := t.DialContext; b.socket != "" {
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, "unix", b.socket) }
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
	return &client{transport: t, Client: &http.Client{Transport: t, CheckRedirect: conns.Stay}}
}

// protocol finds out whether the server speaks HTTP/2 without TLS, the first time that it
// answers. With TLS the handshake decides that.
type protocol struct {
	clear bool          // without TLS
	door  chan struct{} // capacity 1: a mutex for the fields below; a value is in it while it is locked
	known bool
	until time.Time     // no new attempt before: it did not answer in HTTP/2
	pause time.Duration // between the last two attempts
	// first are the clients for HTTP/1 that were used before HTTP/2 was found to work.
	first []*client
}

// clients returns the client for polls and the client for everything else.
func (b *Backend) clients(ctx context.Context) (*client, *client, error) {
	p := &b.protocol
	if !p.clear {
		return b.polls, b.calls, nil
	}
	select {
	case p.door <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	defer func() { <-p.door }()
	if !p.known && time.Now().After(p.until) {
		if err := b.settle(ctx); err != nil {
			return nil, nil, err
		}
	}
	return b.polls, b.calls, nil
}

// settle tries HTTP/2 with the server. An error means that the server is unavailable. While the
// server does not answer in HTTP/2, HTTP/1 is used, and HTTP/2 is tried again later: the server
// may have been restarting, and a thousand waiters would otherwise use a thousand connections
// for ever.
func (b *Backend) settle(ctx context.Context) error {
	const soonest, latest = 2 * time.Second, time.Minute
	asks := b.newClient(nil, true)
	err := probe(ctx, asks, b.base.String()+"/healthz")
	if err == nil {
		b.protocol.first = []*client{b.polls, b.calls}
		b.polls, b.calls, b.protocol.known = b.newClient(nil, true), asks, true
		return nil
	}
	asks.close()
	dial, isDial := errors.AsType[*net.OpError](err)
	if isDial && dial.Op == "dial" || ctx.Err() != nil {
		return err
	}
	p := &b.protocol
	p.pause = min(max(2*p.pause, soonest), latest)
	p.until = time.Now().Add(p.pause)
	return nil
}

func probe(ctx context.Context, c *client, to string) error {
	const enough = 3 * time.Second // an HTTP/1 server answers the first bytes immediately
	ctx, cancel := context.WithTimeout(ctx, enough)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to, http.NoBody)
	if err != nil {
		return err //nolint:wrapcheck // failed maps it
	}
	res, err := c.Do(req)
	if err != nil {
		return err //nolint:wrapcheck // failed maps it
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer))
	return res.Body.Close() //nolint:wrapcheck // failed maps it
}

func (b *Backend) unavailable(op string, mayHold bool, err error) error {
	return &backend.UnavailableError{Backend: name, Op: op, MayHold: mayHold, Err: err}
}
