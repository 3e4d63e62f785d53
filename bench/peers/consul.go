package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/bench"
	"github.com/holdfast-io/holdfast/bench/engines"
)

// consulLock is the Lock of github.com/hashicorp/consul/api, which opens a session for each
// lock. It has no lock-delay, which would keep a lock from all clients for 15 s after its holder
// died: no holder dies here.
func consulLock() bench.Contender {
	return bench.Contender{Name: "consul/api", Kind: bench.KindPeer, Can: bench.CanWait | bench.CanRenew, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		c, err := engines.ConsulConfig(cfg.URL)
		if err != nil {
			return nil, err
		}
		client, err := api.NewClient(c)
		if err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
		return &consulLocker{client: client, config: c, ttl: max(cfg.TTL, 10*time.Second)}, nil
	}}
}

type consulLocker struct {
	client *api.Client
	config *api.Config
	ttl    time.Duration
}

func (l *consulLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	lock, err := l.client.LockOpts(&api.LockOptions{Key: name, SessionTTL: l.ttl.String()})
	if err != nil {
		return bench.Held{}, fmt.Errorf("lock: %w", err)
	}
	lost, err := lock.Lock(ctx.Done())
	switch {
	case err != nil:
		return bench.Held{}, fmt.Errorf("lock: %w", err)
	case lost == nil && ctx.Err() != nil:
		return bench.Held{}, context.Cause(ctx)
	case lost == nil:
		return bench.Held{}, errors.New("lock: neither got nor an error")
	}
	return bench.Held{Unlock: func(context.Context) error { return lock.Unlock() }}, nil
}

func (l *consulLocker) Close(context.Context) error {
	if l.config.Transport != nil {
		l.config.Transport.CloseIdleConnections()
	}
	return nil
}
