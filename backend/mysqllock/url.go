package mysqllock

import (
	"context"
	"crypto/tls"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// Open returns a backend for a URL, as described under the heading URL of the package's
// documentation. The URL's settings override cfg, with cfg.Conn among them. Nothing is sent until the
// first call.
//
// Errors: *backend.InvalidError for a bad URL, which includes an unknown parameter. It never
// contains the password.
func Open(ctx context.Context, rawURL string, cfg Config) (*Backend, error) {
	if err := connect.Context(ctx); err != nil {
		return nil, err
	}
	cfg, err := parseURL(rawURL, cfg, "mysql", parameters()...)
	if err != nil {
		return nil, err
	}
	return New(cfg)
}

// parameters returns those of a mysql:// URL.
func parameters() []string {
	return []string{"ca", "connect_timeout", "max_conns", "prefix", "socket", "tls"}
}

// parseURL reads the parameters in the order of known. It never returns the password in an error: errors of the library may hold a part of it.
func parseURL(raw string, cfg Config, scheme string, known ...string) (Config, error) {
	urlForm := scheme + "://user:password@host:port/database?parameters"
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != scheme || u.Opaque != "" {
		return cfg, connect.URLError(connect.Hidden, urlForm)
	}
	if strings.ContainsRune(raw, '#') {
		return cfg, connect.URLError("#", "without a fragment; # in a password is %23")
	}
	database := strings.TrimPrefix(u.Path, "/")
	if database == "" || strings.Contains(database, "/") {
		return cfg, connect.URLError(connect.Hidden, urlForm)
	}
	address, ok := backend.Endpoint(u.Host, "3306")
	if !ok {
		return cfg, connect.URLError(connect.Hidden, urlForm)
	}
	c := mysql.NewConfig()
	c.Net, c.Addr, c.DBName, c.TLSConfig = "tcp", address, database, "true"
	if connect.Loopback(u.Hostname()) {
		c.TLSConfig = "preferred"
	}
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	cfg.Conn = c
	values, err := connect.Params(u.RawQuery, known...)
	if err != nil {
		return cfg, err
	}
	for _, name := range known {
		if !values.Has(name) {
			continue
		}
		if err := cfg.set(name, values.Get(name)); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

func (c *Config) set(name, value string) error {
	bad := func(bound string) error { return connect.ParamError(name, value, bound) }
	switch name {
	case "tls":
		modes := []string{"preferred", "true", "false", "skip-verify"}
		if !slices.Contains(modes, value) {
			return bad("one of " + strings.Join(modes, ", "))
		}
		if c.Conn.TLS != nil && value != "true" {
			return bad("true, where a ca is given")
		}
		c.Conn.TLSConfig = value
	case "ca":
		roots, err := connect.Roots(value)
		if err != nil {
			return err
		}
		c.Conn.TLS, c.Conn.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, "true"
	case "socket":
		if c.Conn.TLS != nil {
			return bad("not given where a ca is")
		}
		if !strings.HasPrefix(value, "/") {
			return bad("the path of a socket")
		}
		c.Conn.Net, c.Conn.Addr, c.Conn.TLSConfig = "unix", value, "false"
	case "prefix":
		c.Prefix = value
	default: // a number
		const longest = 3600
		n, err := strconv.Atoi(value)
		if err != nil || n <= 0 || n > longest {
			return bad("a number, 1 to 3600")
		}
		if name == "max_conns" {
			c.MaxConns = n
		} else {
			c.Conn.Timeout = time.Duration(n) * time.Second
		}
	}
	return nil
}
