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

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// target is what a URL names.
type target struct {
	cfg    Config
	option rueidis.ClientOption
	hosts  []string // of a Cluster, or of sentinels: the servers that know which one has the data
	master string   // name that the sentinels have for the servers
}

// connections is a power of two: 2 connections carry the requests.
const connections = 1

// parseURL parses a URL. Its errors are *backend.InvalidError and contain neither the
// password nor any other part of the URL except names of parameters and their values.
func parseURL(raw string, cfg Config) (*target, error) {
	if kind, rest, ok := groupURL(raw); ok {
		return parseGroup(kind, rest, cfg)
	}
	u, err := url.Parse(raw)
	if err != nil {
		// The error of package url repeats the URL, and so the password.
		return nil, connect.URLError(connect.Hidden, "one that can be parsed")
	}
	t := &target{cfg: cfg}
	host, err := t.address(u)
	if err != nil {
		return nil, err
	}
	if u.Fragment != "" || u.Opaque != "" {
		return nil, connect.URLError(connect.Hidden, "without a fragment, and with // after the scheme")
	}
	if u.User != nil {
		t.option.Username = u.User.Username()
		t.option.Password, _ = u.User.Password()
	}
	if err := t.parameters(u.RawQuery, host); err != nil {
		return nil, err
	}
	if t.cfg, err = t.cfg.withDefaults(); err != nil {
		return nil, err
	}
	program.Tune(&t.option, t.cfg.RequestTimeout)
	t.option.PipelineMultiplex = connections
	if t.option.DialCtxFn == nil {
		t.option.DialCtxFn = dialTCP
	}
	return t, nil
}

// address reads the scheme, the host and the path. It returns the host if the scheme is for TLS.
func (t *target) address(u *url.URL) (string, error) {
	switch u.Scheme {
	case "redis", "rediss":
		host, port := u.Hostname(), u.Port()
		if host == "" {
			host = "127.0.0.1"
		}
		if port == "" {
			port = program.DefaultPort
		}
		t.option.InitAddress = []string{net.JoinHostPort(host, port)}
		if db := strings.TrimPrefix(u.Path, "/"); db != "" {
			var err error
			if t.option.SelectDB, err = program.Database("path", db); err != nil {
				return "", err
			}
		}
		if u.Scheme == "redis" {
			host = ""
		}
		return host, nil
	case "redis+unix", "unix":
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.HasSuffix(u.Path, "/") {
			return "", connect.URLError(connect.Hidden, "an absolute path of a socket after "+u.Scheme+"://")
		}
		t.option.InitAddress = []string{u.Path}
		t.option.DialCtxFn = func(ctx context.Context, path string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		}
		return "", nil
	default:
		return "", connect.URLError(connect.Hidden, "of the scheme redis, rediss or redis+unix")
	}
}

// parameters reads the query.
func (t *target) parameters(text, host string) error {
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
	return t.secure(query, host)
}

// secure reads the parameters of TLS. The name of a server is its host, unless it is given.
func (t *target) secure(params url.Values, host string) error {
	conf, err := connect.TLS(params, host != "", "rediss")
	if err != nil || conf == nil {
		return err
	}
	conf.ServerName = cmp.Or(conf.ServerName, host)
	t.option.TLSConfig = conf
	return nil
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
