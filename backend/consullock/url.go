package consullock

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

const (
	schemePlain = "consul"
	schemeTLS   = "consuls"
	defaultPort = "8500"
	defaultHost = "127.0.0.1"
	portTLS     = "8501"
)

// target is the content of a URL.
type target struct {
	config api.Config  // of the client library
	tls    *tls.Config // nil: none
	cfg    Config
}

// Open makes a backend with a client of its own, which Close closes:
//
//	consul://[:token@][host[:port]][/prefix][?parameters]
//
// The scheme consuls is for TLS. The default host is 127.0.0.1, the default port 8500, or 8501 with
// TLS. The token is that of Consul's ACLs. The URL's settings override cfg. Parameters: dc, ns, partition, min_ttl (see Config),
// and, with TLS, ca, cert, key (files) and server_name. Nothing is sent until the first call.
//
// Errors: *backend.InvalidError for a bad URL, such as one with an unknown parameter. Errors never
// contain what is before the @.
func Open(ctx context.Context, rawURL string, cfg Config) (*Backend, error) {
	if err := connect.Context(ctx); err != nil {
		return nil, err
	}
	t, err := parseURL(rawURL, cfg)
	if err != nil {
		return nil, err
	}
	// Calls do not wait behind polls. Two processes of one host fit into the 200 connections that an
	// agent accepts from an address. With 32 for calls, 64 callers made a ninth fewer pairs.
	const forCalls, forPolls = 48, maxQuestions + maxHearing + 2 // and two that are being replaced
	calls, callConns, err := t.client(forCalls)
	if err != nil {
		return nil, err
	}
	polls, pollConns, err := t.client(forPolls)
	if err != nil {
		return nil, err
	}
	b, err := New(calls, t.cfg)
	if err != nil {
		return nil, err
	}
	b.polls, b.owned = polls, []*connect.HTTP{callConns, pollConns}
	return b, nil
}

// client returns a client with up to so many connections of its own. A request that comes when all
// are busy waits for its turn: Consul would refuse it.
//
// Queries that are kept open share no connection with other requests. net/http returns a connection
// to its pool before it passes on an answer without a body, which is Consul's when the key is gone.
// If the query is cancelled in between, the connection is closed, and the next request on it fails
// as if it had been cancelled. A release that fails like that may or may not have worked.
func (t *target) client(connections int) (*api.Client, *connect.HTTP, error) {
	transport := t.transport(connections)
	config := t.config
	config.HttpClient = &http.Client{Transport: wary{transport}, CheckRedirect: connect.Stay}
	client, err := api.NewClient(&config)
	if err != nil {
		return nil, nil, connect.URLError(connect.Hidden, "what the client library takes")
	}
	return client, transport, nil
}

// wary is a transport that closes all idle connections when an answer did not come in time: the
// cause that broke one connection has broken the others as well, and each would take as long.
//
// It returns an answer that refuses a request as an api.StatusError. The client library drops the status of some, and
// the reason of others.
type wary struct{ *connect.HTTP }

// RoundTrip sends the request.
func (t wary) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.HTTP.RoundTrip(req)
	why := context.Cause(req.Context())
	if err != nil && (errors.Is(why, errSilent) || errors.Is(why, context.DeadlineExceeded)) {
		t.CloseIdleConnections()
	}
	if err != nil || !refusing(res.StatusCode) {
		return res, err //nolint:wrapcheck // it stands in for the transport
	}
	defer func() { _ = res.Body.Close() }()
	const most = 4 << 10
	reason, err := io.ReadAll(io.LimitReader(res.Body, most))
	if err != nil {
		return nil, err //nolint:wrapcheck // it stands in for the transport
	}
	return nil, api.StatusError{Code: res.StatusCode, Body: string(reason)}
}

// refusing reports whether Consul refuses requests with that status. With two others it answers questions: for a key that
// does not exist, and for a condition that does not hold.
func refusing(status int) bool {
	return status >= http.StatusBadRequest && status < http.StatusInternalServerError && status != http.StatusNotFound && status != http.StatusConflict
}

func (t *target) transport(connections int) *connect.HTTP {
	const idle = 90 * time.Second
	tr := connect.NewHTTP(&net.Dialer{Timeout: answerTime, KeepAlive: answerTime})
	tr.MaxConnsPerHost, tr.MaxIdleConns, tr.MaxIdleConnsPerHost, tr.IdleConnTimeout = connections, connections, connections, idle
	tr.TLSClientConfig = t.tls.Clone()
	return tr
}

func parseURL(raw string, cfg Config) (target, error) {
	t := target{cfg: cfg, config: api.Config{Scheme: "http"}} // by default the library looks at the environment
	u, err := connect.Split(raw, "consul://host:port or consuls://host:port", schemePlain, schemeTLS)
	if err != nil {
		return t, err
	}
	if err := t.setQuery(u.Query, u.Scheme == schemeTLS); err != nil {
		return t, err
	}
	if u.HasAt {
		user, token, _ := strings.Cut(u.User, ":")
		if t.config.Token, err = url.PathUnescape(token); err != nil || user != "" || token == "" {
			return t, connect.URLError("token", ":token before the @, percent-encoded")
		}
	}
	if u.Path != "" {
		t.cfg.Prefix = u.Path
		if err := validatePrefix(u.Path); err != nil {
			return t, err
		}
	}
	host := cmp.Or(u.Hosts, defaultHost)
	port := defaultPort
	if t.tls != nil {
		port, t.config.Scheme = portTLS, "https"
	}
	var ok bool
	if t.config.Address, ok = backend.Endpoint(host, port); !ok {
		return t, connect.URLError(host, "host or host:port")
	}
	return t, nil
}

func (t *target) setQuery(query string, secure bool) error {
	params, err := connect.Params(query, append([]string{"dc", "ns", "partition", "min_ttl"}, connect.TLSParams()...)...)
	if err != nil {
		return err
	}
	t.config.Datacenter, t.config.Namespace, t.config.Partition = params.Get("dc"), params.Get("ns"), params.Get("partition")
	if err := connect.Duration(params, "min_ttl", &t.cfg.MinTTL); err != nil {
		return err
	}
	t.tls, err = connect.TLS(params, secure, schemeTLS)
	return err
}
