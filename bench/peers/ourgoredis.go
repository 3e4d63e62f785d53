package main

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/backend/redislock/goredis"
	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/bench/engines"
)

// overGoRedis is Holdfast through a client of go-redis instead of rueidis.
func overGoRedis() bench.Contender {
	return engines.Variant("holdfast over go-redis", func(_ context.Context, cfg bench.Config) (backend.Backend, error) {
		client, err := goRedis(cfg.URL)
		if err != nil {
			return nil, err
		}
		b, err := goredis.New(client, redislock.Config{Quarantine: redislock.NoQuarantine}) // as in the URL of the bench
		if err != nil {
			return nil, errors.Join(err, client.Close())
		}
		return &withClient{Backend: b, client: client}, nil
	})
}

// withClient closes the client with the backend.
type withClient struct {
	*redislock.Backend

	client *redis.Client
}

// Close closes both.
func (b *withClient) Close() error { return errors.Join(b.Backend.Close(), b.client.Close()) }
