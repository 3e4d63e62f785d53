package goredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// cluster finds the server of a Cluster that has a key. The client itself would follow ASK: while
// a slot is migrating, a script on the new server would take keys that have not arrived for keys
// that do not exist.
type cluster struct{ client *redis.ClusterClient }

var errNobodyKnows = errors.New("redis: none of the masters reports which one has the data")

func (c cluster) dial(ctx context.Context, key string, timeout time.Duration) (program.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	first := make(chan *conn, 1)
	err := c.client.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		made, err := follow(ctx, node.Options(), key, timeout)
		if err != nil {
			return err
		}
		select {
		case first <- made:
			cancel() // the others
		default:
			made.Close()
		}
		return nil
	})
	select {
	case made := <-first:
		return made, nil
	default:
		return nil, errors.Join(errNobodyKnows, err)
	}
}

// follow connects to a server, and then to those that it names, until one has the key.
func follow(ctx context.Context, settings *redis.Options, key string, timeout time.Duration) (*conn, error) {
	const most = 3
	for range most {
		made := newConn(settings, timeout)
		stop := context.AfterFunc(ctx, made.HangUp)
		_, err := made.Do(ctx, "EXISTS", key)
		if !stop() {
			made.Close()
			return nil, context.Cause(ctx)
		}
		refused, isAnswer := errors.AsType[*program.ServerError](err)
		if err == nil || isAnswer && (refused.Code == "ASK" || refused.Code == "TRYAGAIN") { // it still has the slot
			return made, nil
		}
		made.Close()
		if !isAnswer || refused.Code != "MOVED" {
			return nil, fmt.Errorf("%s: %w", settings.Addr, err)
		}
		next := *settings
		next.Addr = named(refused.Text, settings.Addr)
		settings = &next
	}
	return nil, errNobodyKnows
}

// named returns the address in the text of a MOVED: "MOVED 3999 127.0.0.1:6381". Without a host it
// is on that of the server that said so.
func named(text, from string) string {
	addr := text[strings.LastIndexByte(text, ' ')+1:]
	if host, _, err := net.SplitHostPort(from); err == nil && strings.HasPrefix(addr, ":") {
		return net.JoinHostPort(host, addr[1:])
	}
	return addr
}
