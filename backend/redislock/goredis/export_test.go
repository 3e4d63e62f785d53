package goredis

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// Through is New with something between the backend and each of its connections.
func Through(client redis.UniversalClient, cfg redislock.Config, wrap func(program.Conn) program.Conn) (*redislock.Backend, error) {
	dial, group := dialFor(client)
	return redislock.Over(context.Background(), func(ctx context.Context, key string, timeout time.Duration) (program.Conn, error) {
		conn, err := dial(ctx, key, timeout)
		if err != nil {
			return nil, err
		}
		return wrap(conn), nil
	}, group, cfg)
}
