package etcdlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/logutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
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
	if err := connect.Context(ctx); err != nil {
		return nil, err
	}
	t, err := parseURL(rawURL, cfg)
	if err != nil {
		return nil, err
	}
	if t.cfg, err = t.cfg.withDefaults(); err != nil {
		return nil, err
	}
	type made struct {
		client *clients
		err    error
	}
	done := make(chan made, 1)
	go func() { // the client outlives ctx, but making it does not
		c, err := t.connect(context.WithoutCancel(ctx))
		done <- made{c, err}
	}()
	var m made
	select {
	case m = <-done:
	case <-ctx.Done():
		go func() {
			if m := <-done; m.err == nil {
				_ = m.client.close()
			}
		}()
		m.err = context.Cause(ctx)
	}
	if m.err != nil {
		return nil, fail(ctx, "connect", m.err, false)
	}
	b, err := New(m.client.main, t.cfg)
	if err != nil {
		return nil, errors.Join(err, m.client.close())
	}
	b.owned = m.client
	return b, nil
}

// clients are a client, and, if it has a password, a second one without, which authenticates the first. The
// client library sends the old token with the request for a new one, and etcd 3.4 refuses that once the
// old one has expired.
type clients struct {
	main  *clientv3.Client
	login *clientv3.Client // may be nil
}

func (c *clients) close() error {
	err := c.main.Close()
	if c.login != nil {
		err = errors.Join(err, c.login.Close())
	}
	return err
}

// connect makes the clients.
func (t *target) connect(ctx context.Context) (*clients, error) {
	cc, err := t.clientConfig()
	if err != nil {
		return nil, err
	}
	cc.Context = ctx
	if t.user == "" {
		c, err := clientv3.New(cc)
		return &clients{main: c}, err //nolint:wrapcheck // the caller maps it
	}
	anonymous, err := t.clientConfig()
	if err != nil {
		return nil, err
	}
	anonymous.Context = ctx
	login, err := clientv3.New(anonymous)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller maps it
	}
	cc.Username, cc.Password = t.user, t.password
	cc.DialOptions = append([]grpc.DialOption{grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if method == etcdserverpb.Auth_Authenticate_FullMethodName {
				return login.ActiveConnection().Invoke(ctx, method, req, reply, opts...)
			}
			return next(ctx, method, req, reply, cc, opts...)
		})}, cc.DialOptions...)
	c, err := clientv3.New(cc)
	if err != nil {
		return nil, errors.Join(err, login.Close())
	}
	return &clients{c, login}, nil
}

// target is the content of a URL.
type target struct {
	endpoints      []string // host:port
	user, password string
	tls            *tls.Config // nil: none
	cfg            Config
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
		return t, connect.URLError(connect.Hidden, "without control characters")
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || scheme != schemePlain && scheme != schemeTLS {
		return t, connect.URLError(scheme, "etcd://host:port or etcds://host:port")
	}
	rest, query, _ := strings.Cut(rest, "?")
	if strings.ContainsRune(query, '#') || strings.ContainsRune(rest, '#') {
		return t, connect.URLError("#", "without a fragment")
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
		return t, connect.URLError("/"+path, "without a path; the prefix is a parameter")
	}
	for host := range strings.SplitSeq(hosts, ",") {
		ep, err := endpoint(host)
		if err != nil {
			return t, err
		}
		if slices.Contains(t.endpoints, ep) {
			return t, connect.URLError(host, "with each host once")
		}
		t.endpoints = append(t.endpoints, ep)
	}
	return t, t.setQuery(query, scheme == schemeTLS)
}

func (t *target) setUser(user string) error {
	var err error
	if t.user, t.password, err = connect.User(user); err == nil && t.user == "" {
		err = connect.URLError("user", "user:password, percent-encoded")
	}
	return err
}

// endpoint completes host[:port].
func endpoint(host string) (string, error) {
	address, ok := backend.Endpoint(host, defaultPort)
	if !ok {
		return "", connect.URLError(host, "host or host:port, separated by commas")
	}
	return address, nil
}

func (t *target) setQuery(query string, secure bool) error {
	params, err := connect.Params(query, append([]string{"prefix", "timeout", "min_ttl"}, connect.TLSParams()...)...)
	if err != nil {
		return err
	}
	if params.Has("prefix") {
		t.cfg.Prefix = params.Get("prefix")
	}
	if err := errors.Join(connect.Duration(params, "timeout", &t.cfg.RequestTimeout), connect.Duration(params, "min_ttl", &t.cfg.MinTTL)); err != nil {
		return err
	}
	t.tls, err = connect.TLS(params, secure, schemeTLS)
	return err
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
		Endpoints:   t.endpoints,
		DialTimeout: dialTimeout, DialKeepAliveTime: pingTime, DialKeepAliveTimeout: pingTimeout,
		Logger: quiet,
		DialOptions: append((&handshakes{endpoints: len(t.endpoints)}).options(t.tls), grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: redialFirst, Multiplier: 1.6, Jitter: 0.2, MaxDelay: redialMost},
			MinConnectTimeout: dialTimeout,
		})),
	}
	return cc, nil
}
