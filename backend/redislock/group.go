package redislock

import (
	"context"
	"net"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// group connects to the one of several servers that has the data.
func (t *target) group() connector {
	guide := t.option
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
		return newConn(ctx, secureFor(t.option, addr))
	}
}

// secureFor returns the option for one server, whose certificate must be for its host, unless the URL gives a name.
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
