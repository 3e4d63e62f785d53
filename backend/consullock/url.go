package consullock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/conns"
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
	address       string
	tls           bool
	token         string
	datacenter    string
	namespace     string
	partition     string
	ca, cert, key string
	serverName    string
	cfg           Config
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
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	t, err := parseURL(rawURL, cfg)
	if err != nil {
		return nil, err
	}
	const forCalls, forPolls = 32, maxQuestions + maxHearing + 2 // and two that are being replaced
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
	b.polls, b.owned = polls, []*conns.HTTP{callConns, pollConns}
	return b, nil
}

// client returns a client with up to so many connections of its own. A request that comes when all
// are busy waits for its turn: Consul would refuse it.
//
// Queries that are kept open share no connection with other requests. net/http returns a connection
// to its pool before it passes on an answer without a body, which is Consul's when the key is gone.
// If the query is cancelled in between, the connection is closed, and the next request on it fails
// as if it had been cancelled. A release that fails like that may or may not have worked.
func (t *target) client(connections int) (*api.Client, *conns.HTTP, error) {
	transport, err := t.transport(connections)
	if err != nil {
		return nil, nil, err
	}
	scheme := "http"
	if t.tls {
		scheme = "https"
	}
	client, err := api.NewClient(&api.Config{
		Address: t.address, Scheme: scheme, Token: t.token, Datacenter: t.datacenter, Namespace: t.namespace, Partition: t.partition,
		HttpClient: &http.Client{Transport: wary{transport}, CheckRedirect: conns.Stay},
	})
	if err != nil {
		return nil, nil, badURL("…", "what the client library takes")
	}
	return client, transport, nil
}

// wary is a transport that closes all idle connections when an answer did not come in time: the
// cause that broke one connection has broken the others as well, and each would take as long.
type wary struct{ *conns.HTTP }

// RoundTrip sends the request.
func (t wary) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.HTTP.RoundTrip(req)
	why := context.Cause(req.Context())
	if err != nil && (errors.Is(why, errSilent) || errors.Is(why, context.DeadlineExceeded)) {
		t.CloseIdleConnections()
	}
	return res, err //nolint:wrapcheck // it stands in for the transport
}

func (t *target) transport(connections int) (*conns.HTTP, error) {
	const idle = 90 * time.Second
	tr := conns.NewHTTP(&net.Dialer{Timeout: answerTime, KeepAlive: answerTime})
	tr.MaxConnsPerHost, tr.MaxIdleConns, tr.MaxIdleConnsPerHost, tr.IdleConnTimeout = connections, connections, connections, idle
	if !t.tls {
		return tr, nil
	}
	tr.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.serverName}
	if t.ca != "" {
		pem, err := os.ReadFile(t.ca)
		if err != nil {
			return nil, fmt.Errorf("consul: ca: %w", err)
		}
		tr.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !tr.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &backend.InvalidError{Field: "ca", Value: strconv.QuoteToGraphic(t.ca), Bound: "a file with certificates in PEM"}
		}
	}
	if t.cert != "" {
		cert, err := tls.LoadX509KeyPair(t.cert, t.key)
		if err != nil {
			return nil, fmt.Errorf("consul: cert: %w", err)
		}
		tr.TLSClientConfig.Certificates = []tls.Certificate{cert}
	}
	return tr, nil
}

func badURL(value, bound string) error {
	const most = 64
	if len(value) > most {
		value = strings.ToValidUTF8(value[:most], "") + "…"
	}
	return &backend.InvalidError{Field: "url", Value: strconv.QuoteToGraphic(value), Bound: bound}
}

func parseURL(raw string, cfg Config) (target, error) {
	t := target{cfg: cfg}
	if strings.ContainsFunc(raw, unicode.IsControl) {
		return t, badURL("…", "without control characters")
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || scheme != schemePlain && scheme != schemeTLS {
		return t, badURL("…", "consul://host:port or consuls://host:port")
	}
	t.tls = scheme == schemeTLS
	if strings.ContainsRune(rest, '#') {
		return t, badURL("#", "without a fragment")
	}
	rest, query, _ := strings.Cut(rest, "?")
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		user, token, ok := strings.Cut(rest[:i], ":")
		var err error
		if t.token, err = url.PathUnescape(token); err != nil || user != "" || !ok || token == "" {
			return t, badURL("token", ":token before the @, percent-encoded")
		}
		rest = rest[i+1:]
	}
	host, prefix, ok := strings.Cut(rest, "/")
	if ok && prefix != "" {
		t.cfg.Prefix = prefix
		if err := validatePrefix(prefix); err != nil {
			return t, err
		}
	}
	if host == "" {
		host = defaultHost
	}
	port := defaultPort
	if t.tls {
		port = portTLS
	}
	if t.address, ok = backend.Endpoint(host, port); !ok {
		return t, badURL(host, "host or host:port")
	}
	return t, t.setQuery(query)
}

func (t *target) setQuery(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return badURL("?…", "with parameters as name=value, percent-encoded")
	}
	texts := map[string]*string{
		"dc": &t.datacenter, "ns": &t.namespace, "partition": &t.partition,
		"ca": &t.ca, "cert": &t.cert, "key": &t.key, "server_name": &t.serverName,
	}
	for param, vs := range values {
		if len(vs) != 1 {
			return badURL(param, "with each parameter once")
		}
		switch text, known := texts[param]; {
		case param == "min_ttl":
			d, err := time.ParseDuration(vs[0])
			if err != nil || d <= 0 {
				return &backend.InvalidError{Field: param, Value: strconv.QuoteToGraphic(vs[0]), Bound: `a duration as "10s"`}
			}
			t.cfg.MinTTL = d
		case !known:
			return badURL(param, "one of the parameters dc, ns, partition, min_ttl, ca, cert, key, server_name")
		case !t.tls && (param == "ca" || param == "cert" || param == "key" || param == "server_name"):
			return badURL(param, "used with consuls:// only")
		default:
			*text = vs[0]
		}
	}
	if (t.cert == "") != (t.key == "") {
		return badURL("cert, key", "given both or none")
	}
	return nil
}
