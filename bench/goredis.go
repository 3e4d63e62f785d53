package main

import (
	"context"
	"errors"
	"net/url"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/backend/redislock/goredis"
	"github.com/holdfast-io/holdfast/internal/bench"
)

// goRedis is a client of go-redis on a URL of the bench, with the defaults of go-redis: more
// connections were slower when measured.
func goRedis(raw string) (*redis.Client, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("the URL of Redis cannot be parsed") // the error may hold the password
	}
	u.RawQuery = "" // only our own client knows the parameters
	option, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, errors.New("go-redis cannot parse the URL of Redis")
	}
	return redis.NewClient(option), nil
}

// overGoRedis is Holdfast through a client of go-redis instead of rueidis.
func overGoRedis() bench.Contender {
	c := bench.Ours(func(_ context.Context, url string) (backend.Backend, error) {
		client, err := goRedis(url)
		if err != nil {
			return nil, err
		}
		b, err := goredis.New(client, redislock.Config{Quarantine: redislock.NoQuarantine}) // as in the URL of the bench
		if err != nil {
			return nil, errors.Join(err, client.Close())
		}
		return &withClient{Backend: b, client: client}, nil
	})
	c.Name = "holdfast over go-redis"
	return c
}

// withClient closes the client with the backend.
type withClient struct {
	*redislock.Backend

	client *redis.Client
}

// Close closes both.
func (b *withClient) Close() error { return errors.Join(b.Backend.Close(), b.client.Close()) }
