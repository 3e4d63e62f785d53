package redislock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend"
)

// target is what a URL names.
type target struct {
	cfg    Config
	option rueidis.ClientOption
	hosts  []string // of a Cluster, or of sentinels: the servers that know which one has the data
	master string   // name that the sentinels have for the servers
}

const (
	defaultPort = "6379"
	maxDatabase = 1 << 16
)

// Sizes of what rueidis allocates for each connection. Requests and answers are small.
const (
	bufferSize  = 64 << 10
	ringScale   = 8
	connections = 1 // a power of two: 2 connections carry the requests
)

// parseURL parses a URL. Its errors are *backend.InvalidError and contain neither the
// password nor any other part of the URL except names of parameters and their values.
func parseURL(raw string, cfg Config) (*target, error) {
	if kind, rest, ok := groupURL(raw); ok {
		return parseGroup(kind, rest, cfg)
	}
	u, err := url.Parse(raw)
	if err != nil {
		// The error of package url repeats the URL, and so the password.
		return nil, badURL("one that can be parsed")
	}
	t := &target{cfg: cfg}
	if err := t.address(u); err != nil {
		return nil, err
	}
	if u.Fragment != "" || u.Opaque != "" {
		return nil, badURL("without a fragment, and with // after the scheme")
	}
	if u.User != nil {
		t.option.Username = u.User.Username()
		t.option.Password, _ = u.User.Password()
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, badURL("with well-formed parameters")
	}
	if err := t.parameters(query); err != nil {
		return nil, err
	}
	if t.cfg, err = t.cfg.withDefaults(); err != nil {
		return nil, err
	}
	t.tune()
	return t, nil
}

// address reads the scheme, the host and the path.
func (t *target) address(u *url.URL) error {
	switch u.Scheme {
	case "redis", "rediss":
		host, port := u.Hostname(), u.Port()
		if host == "" {
			host = "127.0.0.1"
		}
		if port == "" {
			port = defaultPort
		}
		t.option.InitAddress = []string{net.JoinHostPort(host, port)}
		if u.Scheme == "rediss" {
			t.option.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
		}
		if db := strings.TrimPrefix(u.Path, "/"); db != "" {
			return t.database("path", db)
		}
		return nil
	case "redis+unix", "unix":
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.HasSuffix(u.Path, "/") {
			return badURL("an absolute path of a socket after " + u.Scheme + "://")
		}
		t.option.InitAddress = []string{u.Path}
		t.option.DialCtxFn = func(ctx context.Context, path string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		}
		return nil
	default:
		return &backend.InvalidError{Field: "scheme", Value: shownName(u.Scheme), Bound: "redis, rediss or redis+unix"}
	}
}

func (t *target) database(field, text string) error {
	db, err := strconv.Atoi(text)
	if err != nil || db < 0 || db >= maxDatabase {
		// A mistyped URL can have its password in the path.
		return &backend.InvalidError{Field: field, Value: "(not shown)", Bound: "the number of a database"}
	}
	t.option.SelectDB = db
	return nil
}

// parameters reads the query. An unknown parameter is refused: a misspelled setting must not
// be silently ignored.
func (t *target) parameters(query url.Values) error {
	known := []string{"ca", "cert", "client_name", "db", "key", "prefix", "quarantine", "replicas", "server_name", "timeout"}
	for name, values := range query {
		if !slices.Contains(known, name) {
			return &backend.InvalidError{Field: "parameter", Value: shownName(name), Bound: "one of " + strings.Join(known, ", ")}
		}
		if len(values) != 1 || values[0] == "" {
			return &backend.InvalidError{Field: name, Value: strconv.Itoa(len(values)) + " values", Bound: "given once, and not empty"}
		}
	}
	if v := query.Get("db"); v != "" {
		if err := t.database("db", v); err != nil {
			return err
		}
	}
	if v := query.Get("timeout"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			return &backend.InvalidError{Field: "timeout", Value: shortQuote(v), Bound: `a duration, like "3s"`}
		}
		t.cfg.RequestTimeout = d
	}
	switch v := query.Get("quarantine"); v {
	case "":
	case "off":
		t.cfg.Quarantine = NoQuarantine
	default:
		d, err := time.ParseDuration(v)
		if err != nil || d <= 0 {
			return &backend.InvalidError{Field: "quarantine", Value: shortQuote(v), Bound: `"off", or a duration, like "30s"`}
		}
		t.cfg.Quarantine = d
	}
	if v := query.Get("replicas"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > maxReplicas {
			return &backend.InvalidError{Field: "replicas", Value: shortQuote(v), Bound: "0 to " + strconv.Itoa(maxReplicas)}
		}
		t.cfg.Replicas = n
	}
	if v := query.Get("prefix"); v != "" {
		t.cfg.Prefix = v
	}
	t.option.ClientName = query.Get("client_name")
	if strings.ContainsFunc(t.option.ClientName, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return &backend.InvalidError{Field: "client_name", Value: shortQuote(t.option.ClientName), Bound: "printable ASCII without spaces"}
	}
	return t.secure(query)
}

// secure reads the parameters of TLS.
func (t *target) secure(query url.Values) error {
	for _, name := range []string{"ca", "cert", "key", "server_name"} {
		if query.Has(name) && t.option.TLSConfig == nil {
			return &backend.InvalidError{Field: name, Value: "given", Bound: "used with rediss:// only"}
		}
	}
	if v := query.Get("server_name"); v != "" {
		t.option.TLSConfig.ServerName = v
	}
	if v := query.Get("ca"); v != "" {
		pem, err := os.ReadFile(v) //nolint:gosec // the caller names the file
		pool := x509.NewCertPool()
		if err != nil || !pool.AppendCertsFromPEM(pem) {
			return &backend.InvalidError{Field: "ca", Value: shortQuote(v), Bound: "a readable file of PEM certificates"}
		}
		t.option.TLSConfig.RootCAs = pool
	}
	if query.Has("cert") != query.Has("key") {
		return &backend.InvalidError{Field: "cert", Value: "given alone", Bound: "given together with key"}
	}
	if v := query.Get("cert"); v != "" {
		pair, err := tls.LoadX509KeyPair(v, query.Get("key"))
		if err != nil {
			return &backend.InvalidError{Field: "cert", Value: shortQuote(v), Bound: "a readable PEM certificate that fits the key"}
		}
		t.option.TLSConfig.Certificates = []tls.Certificate{pair}
	}
	return nil
}

// tune configures the client for the needs of redislock.
func (t *target) tune() {
	o := &t.option
	o.ForceSingleClient = true
	o.DisableCache = true
	o.DisableRetry = true     // the caller decides whether to retry
	o.AlwaysPipelining = true // a request is never read in the goroutine that sent it
	o.PipelineMultiplex = connections
	o.ReadBufferEachConn, o.WriteBufferEachConn, o.RingScaleEachConn = bufferSize, bufferSize, ringScale
	o.Dialer = net.Dialer{Timeout: t.cfg.RequestTimeout, KeepAlive: time.Second}
	o.ConnWriteTimeout = t.cfg.RequestTimeout
	dial := o.DialCtxFn
	if dial == nil {
		dial = dialTCP
	}
	o.DialCtxFn = func(ctx context.Context, addr string, dialer *net.Dialer, secure *tls.Config) (net.Conn, error) {
		if ctx.Value(noDial{}) != nil {
			return nil, errNoConnection
		}
		return dial(ctx, addr, dialer, secure)
	}
}

func dialTCP(ctx context.Context, addr string, dialer *net.Dialer, secure *tls.Config) (net.Conn, error) {
	dial := dialer.DialContext
	if secure != nil {
		dial = (&tls.Dialer{NetDialer: dialer, Config: secure}).DialContext
	}
	return dial(ctx, "tcp", addr)
}

// connect creates a client. It returns when ctx ends, at the latest.
func connect(ctx context.Context, option rueidis.ClientOption) (rueidis.Client, error) {
	type dialled struct {
		client rueidis.Client
		err    error
	}
	done := make(chan dialled, 1)
	go func() {
		client, err := rueidis.NewClient(option)
		if err != nil && client != nil {
			client.Close()
		}
		done <- dialled{client, err}
	}()
	select {
	case d := <-done:
		if d.err != nil {
			return nil, &sentError{err: fromRueidis(d.err)}
		}
		return d.client, nil
	case <-ctx.Done():
		go func() {
			if d := <-done; d.err == nil {
				d.client.Close()
			}
		}()
		return nil, &sentError{err: fmt.Errorf("connect: %w", errors.Join(context.Cause(ctx)))}
	}
}

// shownName returns the name of a parameter, unless it may be something else: a mistyped URL
// can have its password there.
func shownName(name string) string {
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return "(not shown)"
	}
	return shortQuote(name)
}

func badURL(bound string) error {
	return &backend.InvalidError{Field: "url", Value: "(not shown)", Bound: bound}
}
