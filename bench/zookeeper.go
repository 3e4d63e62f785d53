package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/bench"
)

// zooKeeperEngine returns the engine at a URL of zklock. With a user in the URL it has our client alone.
func zooKeeperEngine(ctx context.Context, raw string) (*bench.Engine, error) {
	servers, err := zooKeeperServers(raw)
	if err != nil {
		return nil, err
	}
	conn, err := zooKeeperConn(ctx, raw)
	if err != nil {
		return nil, err
	}
	conn.Close()
	e := &bench.Engine{Name: "zookeeper", URL: raw, Contenders: []bench.Contender{ours(), rawZooKeeper(), zooKeeperLock()}}
	stats, err := zooKeeperStats(ctx, servers[0])
	if err != nil { // these commands must be allowed, and often are not
		return e, nil //nolint:nilerr // only this figure is missing
	}
	e.Version, _, _ = strings.Cut(stats["zk_version"], "-")
	e.Meter = func(ctx context.Context) (func() (int64, error), error) { return meterZooKeeper(ctx, servers) }
	return e, nil
}

// zooKeeperServers returns the addresses in a URL of zklock.
func zooKeeperServers(raw string) ([]string, error) {
	rest, ok := strings.CutPrefix(raw, "zookeeper://")
	rest, _, _ = strings.Cut(rest, "?")
	if !ok || strings.Contains(rest, "@") {
		return nil, &backend.InvalidError{Field: "backend", Value: `"zookeeper://…"`, Bound: "zookeeper://host:port, without a user, for what is not ours"}
	}
	hosts, _, _ := strings.Cut(rest, "/")
	var servers []string
	for host := range strings.SplitSeq(hosts, ",") {
		server, ok := backend.Endpoint(host, "2181")
		if !ok {
			return nil, &backend.InvalidError{Field: "backend", Value: `"zookeeper://…"`, Bound: "zookeeper://host:port, hosts separated by commas"}
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// zooKeeperConn returns a go-zookeeper session that is connected.
func zooKeeperConn(ctx context.Context, raw string) (*zk.Conn, error) {
	servers, err := zooKeeperServers(raw)
	if err != nil {
		return nil, err
	}
	conn, events, err := zk.Connect(servers, connectTimeout, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, &backend.UnavailableError{Backend: "zookeeper", Op: "connect", Err: err}
	}
	timer := time.NewTimer(connectTimeout)
	defer timer.Stop()
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return conn, nil
			}
			continue
		case <-timer.C:
			err = errors.New("no session within " + connectTimeout.String())
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		conn.Close()
		return nil, &backend.UnavailableError{Backend: "zookeeper", Op: "connect", Err: err}
	}
}

// silent is a logger of go-zookeeper that discards everything.
type silent struct{}

func (silent) Printf(string, ...any) {}

// zooKeeperPath returns the node for the name of a lock: all nodes are siblings.
func zooKeeperPath(name string) string { return "/" + strings.ReplaceAll(name, "/", "-") }

// rawZooKeeper is the minimum of requests for a lock on ZooKeeper: create and delete. It does not
// wait, and nothing ends with its owner: it is a limit, not a lock.
func rawZooKeeper() bench.Contender {
	return bench.Contender{Name: "raw", Open: func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		conn, err := zooKeeperConn(ctx, cfg.URL)
		if err != nil {
			return nil, err
		}
		return &rawZooKeeperLocker{conn: conn}, nil
	}}
}

type rawZooKeeperLocker struct{ conn *zk.Conn }

func (l *rawZooKeeperLocker) Lock(_ context.Context, name string) (bench.Held, error) {
	path := zooKeeperPath(name)
	if _, err := l.conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		return bench.Held{}, fmt.Errorf("create: %w", err)
	}
	return bench.Held{Unlock: func(context.Context) error {
		if err := l.conn.Delete(path, -1); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		return nil
	}}, nil
}

func (l *rawZooKeeperLocker) Close(context.Context) error {
	l.conn.Close()
	return nil
}

// meterZooKeeper counts the packets that the servers received from clients.
func meterZooKeeper(ctx context.Context, servers []string) (func() (int64, error), error) {
	packets := func() (int64, error) {
		var sum int64
		for _, server := range servers {
			stats, err := zooKeeperStats(ctx, server)
			if err != nil {
				return 0, err
			}
			n, err := strconv.ParseInt(stats["zk_packets_received"], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("zk_packets_received: %w", err)
			}
			sum += n
		}
		return sum, nil
	}
	before, err := packets()
	if err != nil {
		return nil, err
	}
	return func() (int64, error) {
		after, err := packets()
		return after - before - int64(len(servers)), err // without the question for it
	}, nil
}

// zooKeeperStats returns what the command mntr of a server reports.
func zooKeeperStats(ctx context.Context, server string) (map[string]string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", server)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(connectTimeout)); err != nil {
		return nil, fmt.Errorf("deadline: %w", err)
	}
	if _, err := conn.Write([]byte("mntr")); err != nil {
		return nil, fmt.Errorf("mntr: %w", err)
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		return nil, fmt.Errorf("mntr: %w", err)
	}
	stats := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			stats[name] = value
		}
	}
	if len(stats) == 0 {
		return nil, fmt.Errorf("mntr: %w", errors.ErrUnsupported)
	}
	return stats, nil
}

// zooKeeperLock is the Lock of github.com/go-zookeeper/zk. Its call takes no context: a call that
// is given up here continues, and releases the lock when it gets it.
func zooKeeperLock() bench.Contender {
	return bench.Contender{Name: "go-zookeeper", Can: bench.CanWait | bench.CanRenew, Open: func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		conn, err := zooKeeperConn(ctx, cfg.URL)
		if err != nil {
			return nil, err
		}
		return &zooKeeperLocker{conn: conn, paths: make(map[string]bool)}, nil
	}}
}

type zooKeeperLocker struct {
	conn *zk.Conn

	mu    sync.Mutex
	paths map[string]bool // the paths that it leaves behind
	late  sync.WaitGroup
}

func (l *zooKeeperLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	path := zooKeeperPath(name)
	l.mu.Lock()
	l.paths[path] = true
	l.mu.Unlock()
	lock := zk.NewLock(l.conn, path, zk.WorldACL(zk.PermAll))
	done := make(chan error, 1)
	go func() { done <- lock.Lock() }()
	select {
	case err := <-done:
		if err != nil {
			return bench.Held{}, fmt.Errorf("lock: %w", err)
		}
		return bench.Held{Unlock: func(context.Context) error { return lock.Unlock() }}, nil
	case <-ctx.Done():
		l.late.Go(func() {
			if <-done == nil {
				_ = lock.Unlock() // its session ends with the locker
			}
		})
		return bench.Held{}, context.Cause(ctx)
	}
}

func (l *zooKeeperLocker) Close(context.Context) error {
	// Calls that were given up end with the locks before them, or with the connection.
	l.late.Wait()
	defer l.conn.Close()
	for path := range l.paths {
		if err := l.conn.Delete(path, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return fmt.Errorf("delete %s: %w", path, err)
		}
	}
	return nil
}
