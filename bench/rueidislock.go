package main

import (
	"context"
	"fmt"

	"github.com/redis/rueidis/rueidislock"

	"github.com/holdfast-io/holdfast/internal/bench"
)

// rueidisLock is github.com/redis/rueidis/rueidislock, set up as its own documentation says for
// one server of Redis 7.0.5 or newer: one key for each lock, and no notifications of its own
// changes. It renews its locks, and waits for notifications.
func rueidisLock() bench.Contender {
	return bench.Contender{Name: "rueidislock", Can: bench.CanWait | bench.CanRenew, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		option, err := redisOption(cfg.URL)
		if err != nil {
			return nil, err
		}
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: option, KeyMajority: 1, NoLoopTracking: true, KeyValidity: cfg.TTL,
		})
		if err != nil {
			return nil, fmt.Errorf("new locker: %w", err)
		}
		return &rueidisLocker{locker: locker}, nil
	}}
}

type rueidisLocker struct{ locker rueidislock.Locker }

func (l *rueidisLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	// The lock ends when the context that it was acquired with ends.
	_, cancel, err := l.locker.WithContext(ctx, name)
	if err != nil {
		return bench.Held{}, fmt.Errorf("lock: %w", err)
	}
	return bench.Held{Unlock: func(context.Context) error { cancel(); return nil }}, nil
}

func (l *rueidisLocker) Close(context.Context) error {
	l.locker.Close()
	return nil
}
