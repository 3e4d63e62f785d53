package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/internal/bench"
)

// bsmRedislock is github.com/bsm/redislock over go-redis. It waits by retrying, every 100 ms as
// in its own examples.
func bsmRedislock() bench.Contender {
	return bench.Contender{Name: "bsm/redislock", Can: bench.CanWait, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		client, err := goRedis(cfg.URL)
		if err != nil {
			return nil, err
		}
		return &bsmLocker{redis: client, client: redislock.New(client), ttl: cfg.TTL}, nil
	}}
}

type bsmLocker struct {
	redis  *redis.Client
	client *redislock.Client
	ttl    time.Duration
}

func (l *bsmLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	for {
		lock, err := l.client.Obtain(ctx, name, l.ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
		switch {
		case err == nil:
			return bench.Held{Unlock: lock.Release}, nil
		case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			// Without a deadline it gives up after the TTL.
		default:
			return bench.Held{}, fmt.Errorf("obtain: %w", err)
		}
	}
}

func (l *bsmLocker) Close(context.Context) error {
	if err := l.redis.Close(); err != nil {
		return fmt.Errorf("close go-redis: %w", err)
	}
	return nil
}
