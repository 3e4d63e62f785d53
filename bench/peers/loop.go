package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/bench/engines"
)

// redisLoop is what people write by hand: SET NX PX, retried every 100 ms until it succeeds, and
// a script that deletes the key if it is still the caller's.
func redisLoop() bench.Contender {
	return bench.Contender{Name: "SET NX loop", Kind: bench.KindLoop, Can: bench.CanWait, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		option, err := engines.RedisOption(cfg.URL)
		if err != nil {
			return nil, err
		}
		client, err := rueidis.NewClient(option)
		if err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
		return &loopLocker{client: client, ttl: cfg.TTL, unlock: rueidis.NewLuaScript(unlockScript)}, nil
	}}
}

const (
	unlockScript = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`
	loopPause    = 100 * time.Millisecond
)

type loopLocker struct {
	client rueidis.Client
	ttl    time.Duration
	unlock *rueidis.Lua
}

func (l *loopLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	owner := rand.Text()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return bench.Held{}, context.Cause(ctx)
		}
		err := l.client.Do(ctx, l.client.B().Set().Key(name).Value(owner).Nx().PxMilliseconds(l.ttl.Milliseconds()).Build()).Error()
		switch {
		case err == nil:
			return bench.Held{Unlock: func(ctx context.Context) error { return l.release(ctx, name, owner) }}, nil
		case !rueidis.IsRedisNil(err):
			return bench.Held{}, fmt.Errorf("SET: %w", err)
		}
		timer.Reset(loopPause)
	}
}

func (l *loopLocker) release(ctx context.Context, name, owner string) error {
	n, err := l.unlock.Exec(ctx, l.client, []string{name}, []string{owner}).AsInt64()
	if err == nil && n == 0 {
		err = errors.New("it was not held any more")
	}
	return err
}

func (l *loopLocker) Close(context.Context) error {
	l.client.Close()
	return nil
}
