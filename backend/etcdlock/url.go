package etcdlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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
	life, end := context.WithCancel(context.WithoutCancel(ctx)) // the client outlives ctx, but making it does not
	made := context.AfterFunc(ctx, end)
	c, err := t.connect(life)
	if !made() && err == nil {
		err = errors.Join(context.Cause(ctx), c.close())
	}
	if err != nil {
		end()
		return nil, fail(ctx, "connect", err, false)
	}
	b, err := New(c.main, t.cfg)
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	b.owned = c
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
	login, err := clientv3.New(cc)
	if err != nil || t.user == "" {
		return &clients{main: login}, err //nolint:wrapcheck // the caller maps it
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

// parseURL parses a URL. Its errors never show what is before the @.
func parseURL(raw string, cfg Config) (target, error) {
	t := target{cfg: cfg}
	u, err := connect.Split(raw, "etcd://host:port or etcds://host:port", schemePlain, schemeTLS)
	if err != nil {
		return t, err
	}
	if u.HasAt {
		if err := t.setUser(u.User); err != nil {
			return t, err
		}
	}
	if u.Path != "" {
		return t, connect.URLError("/"+u.Path, "without a path; the prefix is a parameter")
	}
	for host := range strings.SplitSeq(u.Hosts, ",") {
		ep, ok := backend.Endpoint(host, defaultPort)
		if !ok {
			return t, connect.URLError(host, "host or host:port, separated by commas")
		}
		if slices.Contains(t.endpoints, ep) {
			return t, connect.URLError(host, "with each host once")
		}
		t.endpoints = append(t.endpoints, ep)
	}
	return t, t.setQuery(u.Query, u.Scheme == schemeTLS)
}

func (t *target) setUser(user string) error {
	var err error
	if t.user, t.password, err = connect.User(user); err == nil && t.user == "" {
		err = connect.URLError("user", "user:password, percent-encoded")
	}
	return err
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
