package goredis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/backend/redislock/internal/program"
)

// New returns a backend on the server, or the Cluster, that the client is configured for. It makes
// connections of its own with the client's settings: see the package documentation. The caller
// keeps the client, and closes it after the backend.
//
// New sends the server a few requests, each bounded by cfg.RequestTimeout. The error is
// *backend.InvalidError for a bad cfg and for a client that does not say which server has the data,
// else *backend.UnavailableError.
func New(client redis.UniversalClient, cfg redislock.Config) (*redislock.Backend, error) {
	library, ok := libraryOf(client, cmp.Or(cfg.RequestTimeout, redislock.DefaultRequestTimeout))
	if !ok {
		return nil, &backend.InvalidError{Field: "client", Value: fmt.Sprintf("a %T", client), Bound: "a *redis.Client, also that of NewFailoverClient, or the *redis.ClusterClient of a Cluster"}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	return redislock.Over(ctx, library, cfg)
}

// libraryOf returns how to connect to the servers. It reports false for a client that cannot say which one has the data.
func libraryOf(client redis.UniversalClient, timeout time.Duration) (program.Library, bool) {
	if v := reflect.ValueOf(client); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return program.Library{}, false
	}
	switch c := client.(type) {
	case *redis.Client:
		l := program.Library{Dial: func(_ context.Context, _ string, timeout time.Duration) (program.Conn, error) {
			return newConn(c.Options(), timeout), nil
		}}
		// The Dialer of a fail-over client asks a sentinel for the address of the master.
		const failOver = "FailoverClient"
		if c.Options().Addr != failOver {
			l.Lane = func(ctx context.Context, lane *program.Lane) (program.Conn, error) {
				return newLane(ctx, c.Options(), timeout, lane)
			}
		}
		return l, true
	case *redis.ClusterClient:
		if c.Options().ClusterSlots != nil {
			return program.Library{}, false // its servers are no Cluster: NewFailoverClusterClient
		}
		all := &cluster{client: c}
		return program.Library{Dial: all.dial, Nodes: all.nodes}, true
	default:
		return program.Library{}, false
	}
}

// Eval returns what backend/redislock/redisfence needs to run its script through the client:
//
//	guard := redisfence.New(goredis.Eval(client))
//
// The client may send a script again whose answer was lost. The check of the token may be repeated;
// whether that is so of a script that was passed to redisfence.Guard.Run depends on the script. Eval returns
// nil if client is nil: see redisfence.New.
func Eval(client redis.UniversalClient) func(ctx context.Context, script string, keys, args []string) (any, error) {
	if client == nil {
		return nil
	}
	return func(ctx context.Context, script string, keys, args []string) (any, error) {
		words := make([]any, len(args))
		for i, a := range args {
			words[i] = a
		}
		v, err := redis.NewScript(script).Run(ctx, client, keys, words...).Result()
		if errors.Is(err, redis.Nil) {
			return nil, nil
		}
		return v, err //nolint:wrapcheck // redisfence does
	}
}
