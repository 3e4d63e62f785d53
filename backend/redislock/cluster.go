package redislock

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// overCluster creates a Backend on the Cluster client of a program. Its requests go to the node
// that has the slot, and not through the client, which follows ASK: see router.
func overCluster(ctx context.Context, client rueidis.Client, cfg Config) (*Backend, error) {
	r := newRouter(func(ctx context.Context) (transport, error) {
		node, err := nodeOf(ctx, client, markerKey(cfg))
		if err != nil {
			return nil, err
		}
		return newLink(program.NewConn(node, false), cfg), nil
	})
	return newBackend(ctx, r, cfg)
}

// nodeOf returns the connection of a Cluster client to the node that has the key.
func nodeOf(ctx context.Context, client rueidis.Client, key string) (rueidis.Client, error) {
	const again = 50 * time.Millisecond
	for {
		g := &guides{nodes: client.Nodes()}
		g.hosts = slices.Collect(maps.Keys(g.nodes))
		addr, err := g.findInCluster(key)(ctx)
		if err != nil {
			return nil, err
		}
		if node := g.nodes[addr]; node != nil {
			return node, nil
		}
		// The client does not know that node yet. Its own request makes it read the list of nodes.
		_ = client.Do(program.Undated(ctx), client.B().Exists().Key(key).Build()).Error()
		timer := time.NewTimer(again)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, errors.Join(errNobodyKnows, context.Cause(ctx))
		}
	}
}
