package pglock

import (
	"context"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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
	cfg, err := parseURL(rawURL, cfg, ours(), "postgres", "postgresql")
	if err != nil {
		return nil, err
	}
	return New(cfg)
}

// ours returns the parameters of this package, theirs those of libpq that make sense here. Others
// would be sent to the server as settings.
func ours() []string { return []string{"listen", "schema", "max_conns"} }

func theirs() []string {
	return []string{
		"application_name", "connect_timeout", "host", "passfile", "port", "service", "servicefile", "sslcert", "sslcertmode",
		"sslkey", "sslmode", "sslnegotiation", "sslpassword", "sslrootcert", "sslsni", "target_session_attrs",
	}
}

// parseURL extracts our parameters and leaves the rest to the client library. Errors name the
// first of the schemes.
func parseURL(raw string, cfg Config, ours []string, schemes ...string) (Config, error) {
	form := schemes[0] + "://user:password@host:port/database?parameters"
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || !slices.Contains(schemes, scheme) {
		return cfg, connect.URLError(connect.Hidden, form)
	}
	base, query, _ := strings.Cut(rest, "?")
	if strings.ContainsRune(raw, '#') {
		return cfg, connect.URLError("#", "without a fragment; # in a password is %23")
	}
	known := slices.Concat(ours, theirs())
	slices.Sort(known)
	values, err := connect.Params(query, known...)
	if err != nil {
		return cfg, err
	}
	if err := cfg.take(values); err != nil {
		return cfg, err
	}
	cfg.Conn, err = pgx.ParseConfig("postgres://" + base + "?" + values.Encode())
	if err == nil && leaves(values) && !local(cfg.Conn) {
		values.Set("sslmode", "verify-full")
		cfg.Conn, err = pgx.ParseConfig("postgres://" + base + "?" + values.Encode())
	}
	if err != nil {
		return cfg, connect.URLError(connect.Hidden, form) // the library's message may have a part of the password
	}
	cfg.BeforeConnect = current("postgres://"+base+"?"+values.Encode(), cfg.Conn, cfg.BeforeConnect)
	return cfg, nil
}

// current returns a BeforeConnect that reads the files of the configuration again: client certificates, authorities and passwords are
// replaced while the client runs. While the files cannot be used, because only one of them was replaced so far, what they had
// before stays. before is what the program does after that; nil: nothing.
func current(conn string, had *pgx.ConnConfig, before func(context.Context, *pgx.ConnConfig) error) func(context.Context, *pgx.ConnConfig) error {
	var mu sync.Mutex
	return func(ctx context.Context, c *pgx.ConnConfig) error {
		mu.Lock()
		if now, err := pgx.ParseConfig(conn); err == nil && len(now.Fallbacks) == len(had.Fallbacks) {
			had = now
		}
		fresh := had.Copy()
		mu.Unlock()
		c.Password, c.TLSConfig = fresh.Password, fresh.TLSConfig
		for i, f := range fresh.Fallbacks {
			c.Fallbacks[i].TLSConfig = f.TLSConfig
		}
		if before == nil {
			return nil
		}
		return before(ctx, c)
	}
}

// leaves reports whether neither the URL nor the environment decides about TLS. libpq's default would
// verify nothing, and continue without TLS where the server, or anybody in between, says so.
func leaves(values url.Values) bool {
	return !values.Has("sslmode") && !values.Has("service") && os.Getenv("PGSSLMODE") == "" && os.Getenv("PGSERVICE") == ""
}

// local reports whether all hosts are this machine.
func local(c *pgx.ConnConfig) bool {
	return connect.Loopback(c.Host) && !slices.ContainsFunc(c.Fallbacks, func(f *pgconn.FallbackConfig) bool { return !connect.Loopback(f.Host) })
}

// take extracts our parameters.
func (c *Config) take(values url.Values) error {
	if values.Has("listen") {
		on, err := strconv.ParseBool(values.Get("listen"))
		if err != nil {
			return connect.ParamError("listen", values.Get("listen"), "true or false")
		}
		c.Deaf = !on
	}
	if values.Has("max_conns") {
		n, err := strconv.Atoi(values.Get("max_conns"))
		if err != nil || n == 0 {
			return connect.ParamError("max_conns", values.Get("max_conns"), "3 to 1000")
		}
		c.MaxConns = n
	}
	if values.Has("schema") {
		c.Schema = values.Get("schema")
	}
	for _, name := range ours() {
		values.Del(name)
	}
	return nil
}
