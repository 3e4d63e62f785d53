package goredis

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// cluster connects to servers of a Cluster. The client itself would follow ASK: while a slot is migrating, a script on
// the new server would take keys that have not arrived for keys that do not exist.
type cluster struct {
	client *redis.ClusterClient

	mu       sync.Mutex
	settings redis.Options // of one of the servers: they differ in the address
}

// nodes returns the addresses of the masters that the client knows.
func (c *cluster) nodes(ctx context.Context) ([]string, error) {
	var known []string
	err := c.client.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.settings = *node.Options()
		known = append(known, c.settings.Addr)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the servers of the cluster: %w", err)
	}
	return known, nil
}

func (c *cluster) dial(_ context.Context, addr string, timeout time.Duration) (program.Conn, error) {
	c.mu.Lock()
	settings := c.settings
	c.mu.Unlock()
	settings.Addr = addr
	return newConn(&settings, timeout), nil
}
