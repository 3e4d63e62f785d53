package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/bench/engines"
)

// zooKeeperLock is the Lock of github.com/go-zookeeper/zk. Its call takes no context: a call that
// is given up here continues, and releases the lock when it gets it.
func zooKeeperLock() bench.Contender {
	return bench.Contender{Name: "go-zookeeper", Kind: bench.KindPeer, Can: bench.CanWait | bench.CanRenew, Open: func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		servers, err := engines.ZooKeeperServers(cfg.URL)
		if err != nil {
			return nil, err
		}
		conn, err := engines.ZooKeeperConn(ctx, servers)
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
	path := engines.ZooKeeperPath(name)
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
