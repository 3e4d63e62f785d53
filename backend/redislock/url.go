package redislock

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// target is what a URL names.
type target struct {
	cfg    Config
	option rueidis.ClientOption
	hosts  []string // of a Cluster, or of sentinels: the servers that know which one has the data; else nil
	master string   // name that the sentinels have for the servers
}

// connections is a power of two: 2 connections carry the requests.
const connections = 1

// parseURL parses a URL. Its errors are *backend.InvalidError and contain neither the
// password nor any other part of the URL except names of parameters and their values.
func parseURL(raw string, cfg Config) (*target, error) {
	const like = "of the scheme redis, rediss, redis+unix, redis+cluster or redis+sentinel"
	u, err := connect.Split(raw, like,
		"redis", "rediss", "redis+unix", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
	if err != nil {
		return nil, err
	}
	t := &target{cfg: cfg}
	t.option.DialCtxFn = dialTCP
	if t.option.Username, t.option.Password, err = connect.User(u.User); err != nil {
		return nil, err
	}
	scheme, kind, several := strings.Cut(u.Scheme, "+")
	switch {
	case scheme == "unix" || kind == "unix":
		several, err = false, t.socket(u)
	case kind == "sentinel":
		err = t.sentinels(u)
	case kind == "cluster":
		err = cmp.Or(t.addresses(u.Hosts, program.DefaultPort), t.database(u.Path))
	default:
		if u.Hosts == "" || u.Hosts[0] == ':' {
			u.Hosts = "127.0.0.1" + u.Hosts
		}
		err = cmp.Or(t.addresses(u.Hosts, program.DefaultPort), t.database(u.Path))
	}
	if err == nil {
		err = t.parameters(u.Query, scheme == "rediss")
	}
	if err == nil {
		t.cfg, err = t.cfg.withDefaults()
	}
	switch {
	case err != nil:
		return nil, err
	case kind == "cluster" && t.option.SelectDB != 0:
		return nil, &backend.InvalidError{Field: "db", Value: "(not 0)", Bound: "0: a Cluster has no other"}
	case !several && len(t.hosts) > 1:
		return nil, connect.URLError(connect.Hidden, "with one host, or of the scheme redis+cluster or redis+sentinel")
	}
	program.Tune(&t.option, t.cfg.RequestTimeout)
	t.option.PipelineMultiplex = connections
	if !several {
		t.option, t.hosts = secureFor(t.option, t.hosts[0]), nil
	}
	return t, nil
}

// socket reads the path of a socket.
func (t *target) socket(u connect.Parts) error {
	path, err := url.PathUnescape(u.Path)
	if err != nil || u.Hosts != "" || path == "" || strings.HasSuffix(path, "/") {
		return connect.URLError(connect.Hidden, "an absolute path of a socket after "+u.Scheme+"://")
	}
	t.hosts = []string{"/" + path}
	t.option.DialCtxFn = func(ctx context.Context, path string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", path)
	}
	return nil
}

// sentinels reads the hosts of sentinels, and the name that they have for the servers.
func (t *target) sentinels(u connect.Parts) error {
	const port = "26379"
	name, db, _ := strings.Cut(u.Path, "/")
	if name == "" || strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") != "" {
		return connect.URLError(connect.Hidden, "redis+sentinel://host,host,host/name: the name that the sentinels have for the servers")
	}
	t.master = name
	if err := t.addresses(u.Hosts, port); err != nil {
		return err
	}
	return t.database(db)
}

func (t *target) addresses(hosts, port string) error {
	for host := range strings.SplitSeq(hosts, ",") {
		addr, ok := backend.Endpoint(host, port)
		if !ok {
			return connect.URLError(connect.Hidden, "with host or host:port, separated by commas")
		}
		t.hosts = append(t.hosts, addr)
	}
	return nil
}

// database reads the path of the URL, if it has one.
func (t *target) database(path string) error {
	if path == "" {
		return nil
	}
	var err error
	t.option.SelectDB, err = program.Database("path", path)
	return err
}

// parameters reads the query.
func (t *target) parameters(text string, secure bool) error {
	query, err := connect.Params(text, append([]string{"client_name", "db", "prefix", "quarantine", "replicas", "timeout"}, connect.TLSParams()...)...)
	if err != nil {
		return err
	}
	if v := query.Get("db"); v != "" {
		if t.option.SelectDB, err = program.Database("db", v); err != nil {
			return err
		}
	}
	if err := connect.Duration(query, "timeout", &t.cfg.RequestTimeout); err != nil {
		return err
	}
	switch v := query.Get("quarantine"); v {
	case "":
	case "off":
		t.cfg.Quarantine = NoQuarantine
	default:
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			return connect.ParamError("quarantine", v, `"off", or a duration, like "30s"`)
		}
		t.cfg.Quarantine = d
	}
	if v := query.Get("replicas"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > maxReplicas {
			return connect.ParamError("replicas", v, "0 to "+strconv.Itoa(maxReplicas))
		}
		t.cfg.Replicas = n
	}
	if v := query.Get("prefix"); v != "" {
		t.cfg.Prefix = v
	}
	if t.option.ClientName, err = program.ClientName(query); err != nil {
		return err
	}
	t.option.TLSConfig, err = connect.TLS(query, secure, "rediss")
	return err
}

func dialTCP(ctx context.Context, addr string, dialer *net.Dialer, secure *tls.Config) (net.Conn, error) {
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil || secure == nil {
		return conn, err //nolint:wrapcheck // it names the address
	}
	return program.Secure(ctx, conn, secure, dialer.Timeout)
}

// newConn connects to the server of the option. It returns when ctx ends, at the latest.
func newConn(ctx context.Context, option rueidis.ClientOption) (program.Conn, error) {
	client, err := newClient(ctx, option)
	if err != nil {
		return nil, err
	}
	return program.NewConn(client, true), nil
}

func newClient(ctx context.Context, option rueidis.ClientOption) (rueidis.Client, error) {
	type dialled struct {
		client rueidis.Client
		err    error
	}
	done := make(chan dialled, 1)
	go func() {
		client, err := program.NewClient(option)
		done <- dialled{client, err}
	}()
	select {
	case d := <-done:
		if errors.Is(d.err, context.DeadlineExceeded) {
			d.err = fmt.Errorf("no answer: %w", d.err)
		}
		if d.err != nil {
			return nil, &sentError{err: program.FromRueidis(d.err)}
		}
		return d.client, nil
	case <-ctx.Done():
		go func() {
			if d := <-done; d.err == nil {
				d.client.Close()
			}
		}()
		return nil, &sentError{err: fmt.Errorf("connect: %w", context.Cause(ctx))}
	}
}

// bounded makes the connections of a client end with ctx, also while they are being made.
func bounded(ctx context.Context, option rueidis.ClientOption) rueidis.ClientOption {
	dial := option.DialCtxFn
	option.DialCtxFn = func(_ context.Context, addr string, d *net.Dialer, secure *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, addr, d, secure)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() }) // the user of the connection gets the error
		}
		return conn, err
	}
	return option
}
