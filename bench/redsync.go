package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	pool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/internal/bench"
)

// redsyncOne is github.com/go-redsync/redsync over go-redis on one server, as most programs use
// it. It waits by retrying, 32 times, after 50 to 250 ms each.
func redsyncOne() bench.Contender {
	return bench.Contender{Name: "redsync", Can: bench.CanWait, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		client, err := goRedis(cfg.URL)
		if err != nil {
			return nil, err
		}
		return &redsyncLocker{redis: client, sync: redsync.New(pool.NewPool(client)), ttl: cfg.TTL}, nil
	}}
}

type redsyncLocker struct {
	redis *redis.Client
	sync  *redsync.Redsync
	ttl   time.Duration
}

func (l *redsyncLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	mutex := l.sync.NewMutex(name, redsync.WithExpiry(l.ttl))
	for {
		err := mutex.LockContext(ctx)
		if err == nil {
			return bench.Held{Unlock: func(ctx context.Context) error { return redsyncUnlock(ctx, mutex) }}, nil
		}
		if _, taken := errors.AsType[*redsync.ErrTaken](err); ctx.Err() != nil || !taken && !errors.Is(err, redsync.ErrFailed) {
			return bench.Held{}, fmt.Errorf("lock: %w", err)
		}
	}
}

func redsyncUnlock(ctx context.Context, mutex *redsync.Mutex) error {
	ok, err := mutex.UnlockContext(ctx)
	if err == nil && !ok {
		err = errors.New("it was not held any more")
	}
	return err
}

func (l *redsyncLocker) Close(context.Context) error {
	if err := l.redis.Close(); err != nil {
		return fmt.Errorf("close go-redis: %w", err)
	}
	return nil
}

// redsyncMany is github.com/go-redsync/redsync over go-redis on several servers: Redlock. It has conns
// connections to each server; 0 is the default of go-redis.
func redsyncMany(can bench.Ability, conns int) bench.Contender {
	return bench.Contender{Name: "redsync", Can: can, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		hosts, err := redlockHosts(cfg.URL)
		if err != nil {
			return nil, err
		}
		l := &redsyncManyLocker{}
		var pools []syncredis.Pool
		for _, host := range hosts {
			client := redis.NewClient(&redis.Options{Addr: host, PoolSize: conns})
			l.clients = append(l.clients, client)
			pools = append(pools, pool.NewPool(client))
		}
		l.redsyncLocker = redsyncLocker{sync: redsync.New(pools...), ttl: cfg.TTL}
		return l, nil
	}}
}

type redsyncManyLocker struct {
	redsyncLocker

	clients []*redis.Client
}

func (l *redsyncManyLocker) Close(context.Context) error {
	var errs []error
	for _, c := range l.clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
