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

// nodes are the servers of a Cluster that the client of a program knows. Requests go to the one that has the slot,
// and not through the client, which follows ASK: see router.
type nodes struct {
	known   func(ctx context.Context) ([]string, error)
	connect func(ctx context.Context, addr string) (program.Conn, error)
}

// connector connects to the server that has the data.
func (n *nodes) connector(cfg Config) connector {
	return func(ctx context.Context) (program.Conn, error) {
		hosts, err := n.known(ctx)
		if err != nil {
			return nil, err
		}
		addr, err := (&guides{hosts, n.connect}).owner(ctx, markerKey(cfg))
		if err != nil {
			return nil, err
		}
		return n.connect(ctx, addr)
	}
}

// nodesOf returns the nodes of a Cluster client.
func nodesOf(client rueidis.Client, key string) *nodes {
	return &nodes{
		known: func(context.Context) ([]string, error) { return slices.Collect(maps.Keys(client.Nodes())), nil },
		connect: func(ctx context.Context, addr string) (program.Conn, error) {
			for again := time.NewTicker(50 * time.Millisecond); ; {
				if node := client.Nodes()[addr]; node != nil {
					return program.NewConn(node, false), nil
				}
				// The client does not know that node yet. Its own request makes it read the list of nodes.
				_ = client.Do(program.Undated(ctx), client.B().Exists().Key(key).Build()).Error()
				select {
				case <-again.C:
				case <-ctx.Done():
					return nil, errors.Join(errNobodyKnows, context.Cause(ctx))
				}
			}
		},
	}
}
