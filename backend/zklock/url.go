package zklock

import (
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

const scheme = "zookeeper"

// Open makes a backend from a URL:
//
//	zookeeper://[user:password@]host[:port][,host[:port]...][/path][?parameters]
//
// The default port is 2181, the default path /holdfast. The URL's settings override cfg. Parameters: tick
// and max_session, durations as in Config; tls, true or false; and with TLS ca, cert, key and server_name,
// which are files in PEM and the name that the certificates are for. tls is true where a host is not this
// machine, unless cfg.Dial is set. Nothing is sent until the first call.
//
// Errors: *backend.InvalidError for a bad URL, such as one with an unknown parameter. Errors never
// contain what is before the @.
func Open(ctx context.Context, rawURL string, cfg Config) (*Backend, error) {
	if err := connect.Context(ctx); err != nil {
		return nil, err
	}
	cfg, err := parseURL(rawURL, cfg)
	if err != nil {
		return nil, err
	}
	return New(cfg)
}

func parseURL(raw string, cfg Config) (Config, error) {
	cfg.Servers = nil
	u, err := connect.Split(raw, "zookeeper://host:port", scheme)
	if err != nil {
		return cfg, err
	}
	if u.HasAt {
		if err := cfg.setUser(u.User); err != nil {
			return cfg, err
		}
	}
	if u.Path != "" {
		cfg.Path = "/" + u.Path
		if err := validatePath(cfg.Path); err != nil {
			return cfg, err
		}
	}
	for host := range strings.SplitSeq(u.Hosts, ",") {
		address, ok := backend.Endpoint(host, defaultPort)
		if !ok {
			return cfg, connect.URLError(host, "host or host:port, separated by commas")
		}
		cfg.Servers = append(cfg.Servers, address)
	}
	return cfg, cfg.setQuery(u.Query)
}

func (c *Config) setUser(user string) error {
	var err error
	if c.User, c.Password, err = connect.User(user); err == nil && (c.User == "" || strings.Contains(c.User, ":")) {
		err = connect.URLError("user", "user:password, percent-encoded")
	}
	return err
}

func (c *Config) setQuery(query string) error {
	params, err := connect.Params(query, append([]string{"max_session", "tick", "tls"}, connect.TLSParams()...)...)
	if err != nil {
		return err
	}
	if err := c.setTLS(params); err != nil {
		return err
	}
	return errors.Join(connect.Duration(params, "tick", &c.Tick), connect.Duration(params, "max_session", &c.MaxSession))
}

// setTLS decides about TLS: what crosses a network is encrypted and verified unless the URL says otherwise.
func (c *Config) setTLS(params url.Values) error {
	asked := slices.ContainsFunc(connect.TLSParams(), params.Has)
	remote := slices.ContainsFunc(c.Servers, func(server string) bool {
		host, _, _ := net.SplitHostPort(server)
		return !connect.Loopback(host)
	})
	value := params.Get("tls")
	on := value == "true" || value == "" && (asked || c.Dial == nil && remote)
	switch {
	case !slices.Contains([]string{"", "true", "false"}, value):
		return connect.ParamError("tls", value, "true or false")
	case asked && !on:
		return connect.ParamError("tls", value, "true, with "+strings.Join(connect.TLSParams(), ", "))
	case on && c.TLS != nil && !asked:
		return nil
	}
	var err error
	c.TLS, err = connect.TLS(params, on, scheme)
	return err
}
