package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"

	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/bench/engines"
)

// etcdConcurrency is go.etcd.io/etcd/client/v3/concurrency. Two calls on one session would both
// hold the lock, so each call in progress has a session of its own. The sessions are kept for
// later calls. The token is the revision of the key, which its users take for one.
func etcdConcurrency() bench.Contender {
	return bench.Contender{
		Name: "etcd concurrency", Kind: bench.KindPeer, Can: bench.CanWait | bench.CanRenew | bench.CanToken,
		Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
			c, err := engines.EtcdConfig(cfg.URL)
			if err != nil {
				return nil, err
			}
			client, err := clientv3.New(c)
			if err != nil {
				return nil, fmt.Errorf("connect: %w", err)
			}
			return &concurrencyLocker{client: client, ttl: seconds(cfg.TTL)}, nil
		},
	}
}

// seconds rounds up, as etcd counts.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

type concurrencyLocker struct {
	client *clientv3.Client
	ttl    int

	mu   sync.Mutex
	free []*concurrency.Session
}

func (l *concurrencyLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	session, err := l.session()
	if err != nil {
		return bench.Held{}, fmt.Errorf("session: %w", err)
	}
	mutex := concurrency.NewMutex(session, name)
	if err := mutex.Lock(ctx); err != nil {
		l.giveBack(session)
		return bench.Held{}, fmt.Errorf("lock: %w", err)
	}
	//nolint:gosec // revisions are above 0
	return bench.Held{Token: uint64(mutex.Header().Revision), Unlock: func(ctx context.Context) error {
		defer l.giveBack(session)
		return mutex.Unlock(ctx)
	}}, nil
}

func (l *concurrencyLocker) session() (*concurrency.Session, error) {
	l.mu.Lock()
	if n := len(l.free); n > 0 {
		s := l.free[n-1]
		l.free = l.free[:n-1]
		l.mu.Unlock()
		return s, nil
	}
	l.mu.Unlock()
	return concurrency.NewSession(l.client, concurrency.WithTTL(l.ttl))
}

func (l *concurrencyLocker) giveBack(s *concurrency.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, s)
}

func (l *concurrencyLocker) Close(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.free {
		if err := s.Close(); err != nil {
			return fmt.Errorf("close the session: %w", err)
		}
	}
	if err := l.client.Close(); err != nil {
		return fmt.Errorf("close the client: %w", err)
	}
	return nil
}

// etcdLockService is the lock service of etcd over gRPC, which our server is compared with. Each
// call in progress has a lease of its own, as in etcdConcurrency.
func etcdLockService(name string, endpoint func(cfg bench.Config) string) bench.Contender {
	return bench.Contender{Name: name, Kind: bench.KindPeer, Can: bench.CanWait, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		c, err := engines.EtcdConfig(endpoint(cfg))
		if err != nil {
			return nil, err
		}
		client, err := clientv3.New(c)
		if err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
		return &serviceLocker{client: client, service: v3lockpb.NewLockClient(client.ActiveConnection()), ttl: int64(seconds(cfg.TTL))}, nil
	}}
}

type serviceLocker struct {
	client  *clientv3.Client
	service v3lockpb.LockClient
	ttl     int64

	mu   sync.Mutex
	free []clientv3.LeaseID
	all  []clientv3.LeaseID
}

func (l *serviceLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	lease, err := l.lease(ctx)
	if err != nil {
		return bench.Held{}, fmt.Errorf("grant: %w", err)
	}
	resp, err := l.service.Lock(ctx, &v3lockpb.LockRequest{Name: []byte(name), Lease: int64(lease)})
	if err != nil {
		l.giveBack(lease)
		return bench.Held{}, fmt.Errorf("lock: %w", err)
	}
	return bench.Held{Unlock: func(ctx context.Context) error {
		defer l.giveBack(lease)
		_, err := l.service.Unlock(ctx, &v3lockpb.UnlockRequest{Key: resp.Key})
		return err
	}}, nil
}

func (l *serviceLocker) lease(ctx context.Context) (clientv3.LeaseID, error) {
	l.mu.Lock()
	if n := len(l.free); n > 0 {
		id := l.free[n-1]
		l.free = l.free[:n-1]
		l.mu.Unlock()
		return id, nil
	}
	l.mu.Unlock()
	resp, err := l.client.Grant(ctx, l.ttl)
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, resp.ID)
	return resp.ID, nil
}

func (l *serviceLocker) giveBack(id clientv3.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, id)
}

func (l *serviceLocker) Close(ctx context.Context) error {
	for _, id := range l.all {
		if _, err := l.client.Revoke(ctx, id); err != nil {
			return fmt.Errorf("revoke: %w", err)
		}
	}
	if err := l.client.Close(); err != nil {
		return fmt.Errorf("close the client: %w", err)
	}
	return nil
}
