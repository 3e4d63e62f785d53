package etcdlock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.etcd.io/etcd/client/pkg/v3/logutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/holdfast-io/holdfast/backend"
)

const (
	schemePlain = "etcd"
	schemeTLS   = "etcds"
	defaultPort = "2379"

	// A connection that is silent for pingTime is probed, and given up after pingTimeout. etcd
	// rejects probes every five seconds or more often.
	pingTime    = 10 * time.Second
	pingTimeout = 3 * time.Second
	// While etcd is unreachable it is dialled about this often. gRPC's own limit is two minutes.
	redialFirst = 100 * time.Millisecond
	redialMost  = 2 * time.Second
	dialTimeout = 5 * time.Second
)

// Open makes a backend with a client of its own, which Close closes:
//
//	etcd://[user:password@]host[:port][,host[:port]...][?parameters]
//
// The scheme etcds is for TLS. The default port is 2379. The URL's settings override cfg. Parameters: prefix, timeout, min_ttl (see
// Config), and, with TLS, ca, cert, key (files) and server_name. With a user name Open sends the
// password; otherwise nothing is sent until the first call.
//
// Errors: *backend.InvalidError for a bad URL, such as one with an unknown parameter;
// *backend.UnavailableError if the user could not be authenticated.
func Open(ctx context.Context, rawURL string, cfg Config) (*Backend, error) {
	t, err := parseURL(rawURL, cfg)
	if err != nil {
		return nil, err
	}
	if t.cfg, err = t.cfg.withDefaults(); err != nil {
		return nil, err
	}
	cc, err := t.clientConfig()
	if err != nil {
		return nil, err
	}
	// The client outlives ctx, but making it does not.
	cc.Context = context.WithoutCancel(ctx)
	type made struct {
		client *clientv3.Client
		err    error
	}
	done := make(chan made, 1)
	go func() {
		c, err := clientv3.New(cc)
		done <- made{c, err}
	}()
	var m made
	select {
	case m = <-done:
	case <-ctx.Done():
		go func() {
			if m := <-done; m.client != nil {
				_ = m.client.Close()
			}
		}()
		m.err = context.Cause(ctx)
	}
	if m.err != nil {
		return nil, fail(ctx, "connect", t.reason(ctx, cc.TLS, m.err), false)
	}
	b, err := New(m.client, t.cfg)
	if err != nil {
		return nil, errors.Join(err, m.client.Close())
	}
	b.owned = true
	return b, nil
}

// reason asks TLS why no endpoint could be reached, while ctx lasts: the client of etcd does not
// report that when it has a password to send.
func (t *target) reason(ctx context.Context, conf *tls.Config, err error) error {
	if conf == nil || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for _, ep := range t.endpoints {
		conn, dialErr := (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", ep)
		if dialErr != nil {
			return fmt.Errorf("%w (%w)", dialErr, err)
		}
		_ = conn.Close()
	}
	return err
}

// target is the content of a URL.
type target struct {
	endpoints      []string // host:port
	user, password string
	tls            bool
	ca, cert, key  string
	serverName     string
	cfg            Config
}

func badURL(value, bound string) error {
	return &backend.InvalidError{Field: "url", Value: short(value), Bound: bound}
}

// short quotes what a caller gave, but at most a line of it.
func short(s string) string {
	const most = 64
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.QuoteToGraphic(s)
}

// redact removes user and password.
func redact(endpoint string) string {
	if i := strings.LastIndexByte(endpoint, '@'); i >= 0 {
		return endpoint[i+1:]
	}
	return endpoint
}

// parseURL parses a URL by hand, because package net/url accepts one host only. Its errors never
// show what is before the @.
func parseURL(raw string, cfg Config) (target, error) {
	t := target{cfg: cfg}
	if strings.ContainsFunc(raw, unicode.IsControl) {
		return t, badURL("…", "without control characters")
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || scheme != schemePlain && scheme != schemeTLS {
		return t, badURL(scheme, "etcd://host:port or etcds://host:port")
	}
	t.tls = scheme == schemeTLS
	rest, query, _ := strings.Cut(rest, "?")
	if strings.ContainsRune(query, '#') || strings.ContainsRune(rest, '#') {
		return t, badURL("#", "without a fragment")
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		user := rest[:i]
		rest = rest[i+1:]
		if err := t.setUser(user); err != nil {
			return t, err
		}
	}
	hosts, path, _ := strings.Cut(rest, "/")
	if path != "" {
		return t, badURL("/"+path, "without a path; the prefix is a parameter")
	}
	for host := range strings.SplitSeq(hosts, ",") {
		ep, err := endpoint(host)
		if err != nil {
			return t, err
		}
		if slices.Contains(t.endpoints, ep) {
			return t, badURL(host, "with each host once")
		}
		t.endpoints = append(t.endpoints, ep)
	}
	return t, t.setQuery(query)
}

func (t *target) setUser(user string) error {
	name, password, _ := strings.Cut(user, ":")
	var errName, errPassword error
	t.user, errName = url.PathUnescape(name)
	t.password, errPassword = url.PathUnescape(password)
	if errName != nil || errPassword != nil || t.user == "" {
		return badURL("user", "user:password, percent-encoded")
	}
	return nil
}

// endpoint completes host[:port].
func endpoint(host string) (string, error) {
	address, ok := backend.Endpoint(host, defaultPort)
	if !ok {
		return "", badURL(host, "host or host:port, separated by commas")
	}
	return address, nil
}

func (t *target) setQuery(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return badURL("?…", "with parameters as name=value, percent-encoded")
	}
	for param, vs := range values {
		if len(vs) != 1 {
			return badURL(param, "with each parameter once")
		}
		if err := t.setParam(param, vs[0]); err != nil {
			return err
		}
	}
	if (t.cert == "") != (t.key == "") {
		return badURL("cert, key", "given both or none")
	}
	return nil
}

func (t *target) setParam(param, value string) error {
	switch param {
	case "prefix":
		t.cfg.Prefix = value
		if value == "" {
			return badURL(param, "not empty")
		}
	case "timeout":
		return setDuration(param, value, &t.cfg.RequestTimeout)
	case "min_ttl":
		return setDuration(param, value, &t.cfg.MinTTL)
	case "ca", "cert", "key", "server_name":
		if !t.tls {
			return badURL(param, "used with etcds:// only")
		}
		*map[string]*string{"ca": &t.ca, "cert": &t.cert, "key": &t.key, "server_name": &t.serverName}[param] = value
	default:
		return badURL(param, "one of the parameters prefix, timeout, min_ttl, ca, cert, key, server_name")
	}
	return nil
}

func setDuration(param, value string, d *time.Duration) error {
	v, err := time.ParseDuration(value)
	if err != nil || v <= 0 {
		return &backend.InvalidError{Field: param, Value: short(value), Bound: `a duration as "5s"`}
	}
	*d = v
	return nil
}

// silent is above all levels of the client's logger: what the client has to report is in the
// errors.
const silent = 6

func (t *target) clientConfig() (clientv3.Config, error) {
	quiet, err := logutil.CreateDefaultZapLogger(silent)
	if err != nil {
		return clientv3.Config{}, fmt.Errorf("etcd: logger: %w", err)
	}
	cc := clientv3.Config{
		Endpoints: t.endpoints, Username: t.user, Password: t.password,
		DialTimeout: dialTimeout, DialKeepAliveTime: pingTime, DialKeepAliveTimeout: pingTimeout,
		Logger: quiet,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: redialFirst, Multiplier: 1.6, Jitter: 0.2, MaxDelay: redialMost},
			MinConnectTimeout: dialTimeout,
		})},
	}
	if !t.tls {
		return cc, nil
	}
	cc.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.serverName}
	if t.ca != "" {
		pem, err := os.ReadFile(t.ca)
		if err != nil {
			return cc, fmt.Errorf("etcd: ca: %w", err)
		}
		cc.TLS.RootCAs = x509.NewCertPool()
		if !cc.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return cc, &backend.InvalidError{Field: "ca", Value: short(t.ca), Bound: "a file with certificates in PEM"}
		}
	}
	if t.cert != "" {
		cert, err := tls.LoadX509KeyPair(t.cert, t.key)
		if err != nil {
			return cc, fmt.Errorf("etcd: cert: %w", err)
		}
		cc.TLS.Certificates = []tls.Certificate{cert}
	}
	return cc, nil
}
