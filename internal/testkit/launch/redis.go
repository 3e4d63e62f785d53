//go:build unix

package launch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Redis returns a server: on a free port and on the Unix socket "redis.sock" in its folder, with
// everything on disk before it is answered, unless Args say otherwise.
func Redis(o Options) (*Server, error) { return redis(o, "") }

func redis(o Options, folder string) (*Server, error) {
	s, err := o.server("redis-server", folder, "")
	if err != nil {
		return nil, err
	}
	s.URL = "redis://" + s.addr
	s.command.Argv = slices.Concat(s.command.Argv, []string{
		"--port", Port(s.addr), "--bind", "127.0.0.1", "--unixsocket", s.Path("redis.sock"), "--dir", s.Dir(),
		"--save", "", "--appendonly", "yes", "--appendfsync", "always", "--loglevel", "notice",
	}, o.Args)
	if i := slices.Index(o.Args, "--requirepass"); i >= 0 && i+1 < len(o.Args) {
		s.Secret = o.Args[i+1]
	}
	s.ready = func(ctx context.Context, p *Process) error {
		info, err := RedisDo(ctx, s, "INFO", "server")
		if err != nil {
			return err
		}
		if text, _ := info.(string); !strings.Contains(text, fmt.Sprintf("process_id:%d\r\n", p.Pid())) {
			return errOther
		}
		_, err = RedisDo(ctx, s, "DBSIZE") // refused while it loads
		return err
	}
	return s, nil
}

var errOther = errors.New("another server answers")

// RedisSentinel returns a sentinel. lines are added to its file.
func RedisSentinel(o Options, lines ...string) (*Server, error) {
	s, err := o.server("redis-server", "", "")
	if err != nil {
		return nil, err
	}
	err = s.write(map[string]string{"sentinel.conf": strings.Join(append([]string{
		"port " + Port(s.addr), "bind 127.0.0.1", "dir " + s.Dir(),
	}, lines...), "\n") + "\n"})
	s.command.Argv = slices.Concat(s.command.Argv, []string{s.Path("sentinel.conf"), "--sentinel"})
	s.ready = func(ctx context.Context, _ *Process) error {
		_, err := RedisDo(ctx, s, "PING")
		return err
	}
	return s, err
}
