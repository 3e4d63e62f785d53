package zklock

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/holdfast-io/holdfast/backend"
)

const scheme = "zookeeper"

// Open makes a backend from a URL:
//
//	zookeeper://[user:password@]host[:port][,host[:port]...][/path][?parameters]
//
// The default port is 2181, the default path /holdfast. The URL's settings override cfg. Parameters: tick and max_session, durations
// as in Config. Nothing is sent until the first call.
//
// Errors: *backend.InvalidError for a bad URL, such as one with an unknown parameter. Errors never
// contain what is before the @.
func Open(ctx context.Context, rawURL string, cfg Config) (*Backend, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	cfg, err := parseURL(rawURL, cfg)
	if err != nil {
		return nil, err
	}
	return New(cfg)
}

func badURL(value, bound string) error {
	const most = 64
	if len(value) > most {
		value = strings.ToValidUTF8(value[:most], "") + "…"
	}
	return &backend.InvalidError{Field: "url", Value: strconv.QuoteToGraphic(value), Bound: bound}
}

// parseURL parses a URL by hand, because package net/url accepts one host only.
func parseURL(raw string, cfg Config) (Config, error) {
	cfg.Servers = nil
	if strings.ContainsFunc(raw, unicode.IsControl) {
		return cfg, badURL("…", "without control characters")
	}
	rest, ok := strings.CutPrefix(raw, scheme+"://")
	if !ok {
		return cfg, badURL("…", "zookeeper://host:port")
	}
	if strings.ContainsRune(rest, '#') {
		return cfg, badURL("#", "without a fragment")
	}
	rest, query, _ := strings.Cut(rest, "?")
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		if err := cfg.setUser(rest[:i]); err != nil {
			return cfg, err
		}
		rest = rest[i+1:]
	}
	hosts, path, ok := strings.Cut(rest, "/")
	if ok && path != "" {
		cfg.Path = "/" + path
		if err := validatePath(cfg.Path); err != nil {
			return cfg, err
		}
	}
	for host := range strings.SplitSeq(hosts, ",") {
		address, ok := backend.Endpoint(host, defaultPort)
		if !ok {
			return cfg, badURL(host, "host or host:port, separated by commas")
		}
		cfg.Servers = append(cfg.Servers, address)
	}
	return cfg, cfg.setQuery(query)
}

func (c *Config) setUser(user string) error {
	name, password, _ := strings.Cut(user, ":")
	var errName, errPassword error
	c.User, errName = url.PathUnescape(name)
	c.Password, errPassword = url.PathUnescape(password)
	if errName != nil || errPassword != nil || c.User == "" || strings.Contains(c.User, ":") {
		return badURL("user", "user:password, percent-encoded")
	}
	return nil
}

func (c *Config) setQuery(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return badURL("?…", "with parameters as name=value, percent-encoded")
	}
	for param, vs := range values {
		var d *time.Duration
		switch param {
		case "tick":
			d = &c.Tick
		case "max_session":
			d = &c.MaxSession
		default:
			return badURL(param, "one of the parameters tick, max_session")
		}
		v, err := time.ParseDuration(vs[0])
		if len(vs) != 1 || err != nil || v <= 0 {
			return &backend.InvalidError{Field: param, Value: strconv.QuoteToGraphic(vs[0]), Bound: `a duration as "2s", once`}
		}
		*d = v
	}
	return nil
}
