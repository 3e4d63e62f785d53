package redlock

import (
	"errors"
	"net"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/connect"
)

const (
	schemePlain = "redlock"
	schemeTLS   = "redlocks"
)

// target is what a URL names.
type target struct {
	cfg     Config
	any     rueidis.ClientOption   // of every node
	options []rueidis.ClientOption // by node
}

// parseURL parses a URL. Its errors are *backend.InvalidError and contain neither the
// password nor any other part of the URL except names of parameters and their values.
func parseURL(raw string, cfg Config) (*target, error) {
	p, err := connect.Split(raw, "redlock://host1,host2,host3 or redlocks://host1,host2,host3", schemePlain, schemeTLS)
	if err != nil {
		return nil, err
	}
	t := &target{cfg: cfg}
	if err := t.parameters(p.Query, p.Scheme == schemeTLS); err != nil {
		return nil, err
	}
	if t.any.Username, t.any.Password, err = connect.User(p.User); err != nil {
		return nil, err
	}
	if p.Path != "" {
		if t.any.SelectDB, err = program.Database("path", p.Path); err != nil {
			return nil, err
		}
	}
	if t.cfg, err = t.cfg.withDefaults(); err != nil {
		return nil, err
	}
	return t, t.hosts(strings.Split(p.Hosts, ","))
}

// hosts configures a client for each node.
func (t *target) hosts(hosts []string) error {
	seen := make(map[string]bool)
	for _, host := range hosts {
		addr, ok := backend.Endpoint(host, program.DefaultPort)
		if !ok {
			return connect.URLError(connect.Hidden, "host or host:port, separated by commas")
		}
		if seen[addr] {
			return connect.ParamError("nodes", addr, "given once each")
		}
		seen[addr] = true
		t.options = append(t.options, t.option(addr))
	}
	return checkNodes(len(hosts))
}

// option configures a client for the needs of redlock.
func (t *target) option(addr string) rueidis.ClientOption {
	o := t.any
	o.InitAddress = []string{addr}
	o.PipelineMultiplex = -1 // one connection keeps the order
	program.Tune(&o, t.cfg.RequestTimeout)
	if o.TLSConfig != nil {
		o.TLSConfig = o.TLSConfig.Clone()
		if host, _, err := net.SplitHostPort(addr); err == nil && o.TLSConfig.ServerName == "" {
			o.TLSConfig.ServerName = host
		}
	}
	return o
}

// parameters reads the query.
func (t *target) parameters(text string, secure bool) error {
	query, err := connect.Params(text, append([]string{"client_name", "max_ttl", "prefix", "quarantine", "timeout"}, connect.TLSParams()...)...)
	if err != nil {
		return err
	}
	if err := errors.Join(connect.Duration(query, "timeout", &t.cfg.RequestTimeout), connect.Duration(query, "max_ttl", &t.cfg.MaxTTL)); err != nil {
		return err
	}
	switch v := query.Get("quarantine"); v {
	case "", "on":
		t.cfg.NoQuarantine = t.cfg.NoQuarantine && v == ""
	case "off":
		t.cfg.NoQuarantine = true
	default:
		return connect.ParamError("quarantine", v, `"on" or "off"`)
	}
	if v := query.Get("prefix"); v != "" {
		t.cfg.Prefix = v
	}
	if t.any.ClientName, err = program.ClientName(query); err != nil {
		return err
	}
	t.any.TLSConfig, err = connect.TLS(query, secure, schemeTLS)
	return err
}
