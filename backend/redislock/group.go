package redislock

import (
	"context"
	"net"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// The schemes for several servers of which one has the data.
const (
	kindCluster  = "cluster"
	kindSentinel = "sentinel"

	sentinelPort = "26379"
)

// groupURL recognises redis+cluster:// and redis+sentinel://, and those with rediss. It
// returns the kind, and the URL as it would be for one server.
func groupURL(raw string) (string, string, bool) {
	scheme, rest, ok := strings.Cut(raw, "://")
	base, kind, ok2 := strings.Cut(scheme, "+")
	if !ok || !ok2 || base != "redis" && base != "rediss" || kind != kindCluster && kind != kindSentinel {
		return "", "", false
	}
	return kind, base + "://" + rest, true
}

// parseGroup parses the URL of several servers. Package net/url does not parse several hosts,
// so the rest is parsed as the URL of the first of them.
func parseGroup(kind, rest string, cfg Config) (*target, error) {
	scheme, rest, _ := strings.Cut(rest, "://")
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	user, list := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, list = authority[:i+1], authority[i+1:]
	}
	port, master := program.DefaultPort, ""
	if kind == kindSentinel {
		port = sentinelPort
		path, query, asked := strings.Cut(tail, "?")
		name, db, more := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		if name == "" || strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") != "" {
			return nil, connect.URLError(connect.Hidden, "redis+sentinel://host,host,host/name: the name that the sentinels have for the servers")
		}
		master, tail = name, ""
		if more {
			tail = "/" + db
		}
		if asked {
			tail += "?" + query
		}
	}
	var hosts []string
	for host := range strings.SplitSeq(list, ",") {
		addr, ok := backend.Endpoint(host, port)
		if !ok {
			return nil, connect.URLError(connect.Hidden, "with host or host:port, separated by commas")
		}
		hosts = append(hosts, addr)
	}
	t, err := parseURL(scheme+"://"+user+hosts[0]+tail, cfg)
	if err != nil {
		return nil, err
	}
	if kind == kindCluster && t.option.SelectDB != 0 {
		return nil, &backend.InvalidError{Field: "db", Value: "(not 0)", Bound: "0: a Cluster has no other"}
	}
	t.hosts, t.master = hosts, master
	return t, nil
}

// group connects to the one of several servers that has the data.
func (t *target) group() connector {
	option := t.option
	if option.TLSConfig != nil && option.TLSConfig.ServerName == hostOf(option.InitAddress[0]) {
		option.TLSConfig = option.TLSConfig.Clone()
		option.TLSConfig.ServerName = "" // each has its own: see secureFor
	}
	guide := option
	if t.master != "" {
		// The user and the password are those of the servers, not of the sentinels.
		guide.Username, guide.Password, guide.SelectDB, guide.ClientName = "", "", 0, ""
	}
	g := &guides{hosts: t.hosts, connect: func(ctx context.Context, host string) (program.Conn, error) {
		return newConn(ctx, bounded(ctx, secureFor(guide, host)))
	}}
	return func(ctx context.Context) (program.Conn, error) {
		find, what := g.owner, markerKey(t.cfg)
		if t.master != "" {
			find, what = g.master, t.master
		}
		addr, err := find(ctx, what)
		if err != nil {
			return nil, err
		}
		return newConn(ctx, secureFor(option, addr))
	}
}

// secureFor returns the option for one server, whose certificate must be for its host.
func secureFor(option rueidis.ClientOption, addr string) rueidis.ClientOption {
	option.InitAddress = []string{addr}
	if option.TLSConfig != nil && option.TLSConfig.ServerName == "" {
		option.TLSConfig = option.TLSConfig.Clone()
		option.TLSConfig.ServerName = hostOf(addr)
	}
	return option
}

func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}
