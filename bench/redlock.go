package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/bench"
)

// redlockDial bounds the wait for a server that accepts a connection but does not answer.
const redlockDial = time.Second

// redlockEngine returns the engine at a URL of package redlock. The bare commands use only the hosts.
func redlockEngine(ctx context.Context, raw string) (*bench.Engine, error) {
	nodes, err := redlockClients(raw)
	if err != nil {
		return nil, err
	}
	defer closeClients(nodes)
	info, err := nodes[0].Do(ctx, nodes[0].B().Info().Section("server").Build()).ToString()
	if err != nil {
		return nil, &backend.UnavailableError{Backend: "redlock", Op: "info", Err: err}
	}
	return &bench.Engine{
		Name: "redlock", URL: raw, Version: infoField(info, "redis_version"), Contenders: []bench.Contender{ours(), rawRedlock(), redsyncMany(bench.CanWait, 0)},
	}, nil
}

// redlockHosts returns the hosts of a URL of package redlock, with their ports.
func redlockHosts(raw string) ([]string, error) {
	_, rest, _ := strings.Cut(raw, "://")
	rest, _, _ = strings.Cut(rest, "?")
	rest, _, _ = strings.Cut(rest, "/")
	var hosts []string
	for host := range strings.SplitSeq(rest, ",") {
		addr, ok := backend.Endpoint(host, "6379")
		if !ok {
			return nil, &backend.InvalidError{Field: "backend", Value: `"redlock://…"`, Bound: "redlock://host1,host2,host3, without a password, for what is not ours"}
		}
		hosts = append(hosts, addr)
	}
	return hosts, nil
}

// redlockClients connects to the servers that answer, which must be a majority.
func redlockClients(raw string) ([]rueidis.Client, error) {
	hosts, err := redlockHosts(raw)
	if err != nil {
		return nil, err
	}
	var nodes []rueidis.Client
	for _, addr := range hosts {
		c, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true,
			Dialer: net.Dialer{Timeout: redlockDial}, ConnWriteTimeout: redlockDial,
		})
		if err == nil {
			nodes = append(nodes, c)
		}
	}
	if len(nodes) <= len(hosts)/2 {
		closeClients(nodes)
		return nil, &backend.UnavailableError{Backend: "redlock", Op: "connect", Err: errors.New("no majority of the servers answers")}
	}
	return nodes, nil
}

func closeClients(nodes []rueidis.Client) {
	for _, c := range nodes {
		c.Close()
	}
}

// rawRedlock is the minimum of commands for a lock on a majority: SET NX PX and DEL to all servers
// that answered at the start, of which more than half must agree. It has no token and no queue, it
// cannot wait, and the DEL would delete another owner's lock: it is a limit, not a lock.
func rawRedlock() bench.Contender {
	return bench.Contender{Name: "raw", Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		nodes, err := redlockClients(cfg.URL)
		if err != nil {
			return nil, err
		}
		return &rawRedlockLocker{nodes: nodes, ttl: cfg.TTL.Milliseconds()}, nil
	}}
}

type rawRedlockLocker struct {
	nodes []rueidis.Client
	ttl   int64
}

// everywhere runs a command on all servers concurrently; most of them must execute it. It waits for
// all of them, so that the next command cannot overtake it.
func (l *rawRedlockLocker) everywhere(ctx context.Context, command func(rueidis.Builder) rueidis.Completed) error {
	results := make(chan error, len(l.nodes))
	for _, c := range l.nodes {
		go func() { results <- c.Do(ctx, command(c.B())).Error() }()
	}
	done := 0
	var err error
	for range l.nodes {
		if one := <-results; one == nil {
			done++
		} else {
			err = one
		}
	}
	if done > len(l.nodes)/2 {
		return nil
	}
	return err
}

func (l *rawRedlockLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	err := l.everywhere(ctx, func(b rueidis.Builder) rueidis.Completed {
		return b.Set().Key(name).Value("1").Nx().PxMilliseconds(l.ttl).Build()
	})
	if rueidis.IsRedisNil(err) {
		return bench.Held{}, errTaken
	}
	if err != nil {
		return bench.Held{}, fmt.Errorf("SET: %w", err)
	}
	return bench.Held{Unlock: func(ctx context.Context) error {
		return l.everywhere(ctx, func(b rueidis.Builder) rueidis.Completed { return b.Del().Key(name).Build() })
	}}, nil
}

func (l *rawRedlockLocker) Close(context.Context) error {
	closeClients(l.nodes)
	return nil
}
