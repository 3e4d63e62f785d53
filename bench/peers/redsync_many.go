package main

import (
	"context"
	"errors"

	"github.com/go-redsync/redsync/v4"
	syncredis "github.com/go-redsync/redsync/v4/redis"
	pool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/bench/engines"
)

// redsyncMany is github.com/go-redsync/redsync over go-redis on several servers: Redlock.
func redsyncMany() bench.Contender { return redsyncWith(bench.CanWait, 0) }

// redsyncManyHung is the same while a server hangs. Each of its calls waits for that server, so
// a pair takes ten seconds, which is too slow to measure how long its waiters wait. Each call
// has a connection, so that the calls do not wait for each other as well.
func redsyncManyHung() bench.Contender {
	const most = 256
	return redsyncWith(0, most)
}

// redsyncWith has conns connections to each server. 0 is the default of go-redis.
func redsyncWith(can bench.Ability, conns int) bench.Contender {
	return bench.Contender{Name: "redsync", Kind: bench.KindPeer, Can: can, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		hosts, err := engines.RedlockHosts(cfg.URL)
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
