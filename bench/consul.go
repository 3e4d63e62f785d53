package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/bench"
)

// consulEngine returns the engine at a URL of consullock. Consul does not report how many requests it
// received.
func consulEngine(_ context.Context, raw string) (*bench.Engine, error) {
	cfg, err := consulConfig(raw)
	if err != nil {
		return nil, err
	}
	locker, err := openRawConsul(cfg)
	if err != nil {
		return nil, err
	}
	defer locker.transport.CloseIdleConnections()
	self, err := locker.client.Agent().Self()
	if err != nil {
		return nil, &backend.UnavailableError{Backend: "consul", Op: "ask for its version", Err: err}
	}
	version, _ := self["Config"]["Version"].(string)
	return &bench.Engine{Name: "consul", URL: raw, Version: version, Contenders: []bench.Contender{ours(), rawConsul(), consulLock()}}, nil
}

// consulConfig returns the configuration of Consul's own client for a URL, without TLS.
func consulConfig(raw string) (*api.Config, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "consul" {
		return nil, &backend.InvalidError{Field: "backend", Value: `"consul://…"`, Bound: "consul://:token@host:port, without TLS, for what is not ours"}
	}
	address, ok := backend.Endpoint(u.Host, "8500")
	if !ok {
		return nil, &backend.InvalidError{Field: "backend", Value: `"consul://…"`, Bound: "consul://host:port"}
	}
	cfg := &api.Config{Address: address, Scheme: "http"}
	cfg.Token, _ = u.User.Password()
	return cfg, nil
}

// rawConsul is the minimum of requests for a lock on Consul: a key that is put and deleted. Nothing
// is compared, and nothing ends with its owner: it is a limit, not a lock. It has a connection for
// each call in progress, as consullock has.
func rawConsul() bench.Contender {
	return bench.Contender{Name: "raw", Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		c, err := consulConfig(cfg.URL)
		if err != nil {
			return nil, err
		}
		return openRawConsul(c)
	}}
}

func openRawConsul(cfg *api.Config) (*rawConsulLocker, error) {
	const connections = 256
	transport := &http.Transport{MaxIdleConns: connections, MaxIdleConnsPerHost: connections}
	cfg.HttpClient = &http.Client{Transport: transport}
	client, err := api.NewClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("client of consul: %w", err)
	}
	return &rawConsulLocker{client: client, transport: transport}, nil
}

type rawConsulLocker struct {
	client    *api.Client
	transport *http.Transport
}

func (l *rawConsulLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	key := strings.TrimPrefix(name, "/")
	if _, err := l.client.KV().Put(&api.KVPair{Key: key}, new(api.WriteOptions).WithContext(ctx)); err != nil {
		return bench.Held{}, fmt.Errorf("put: %w", err)
	}
	return bench.Held{Unlock: func(ctx context.Context) error {
		if _, err := l.client.KV().Delete(key, new(api.WriteOptions).WithContext(ctx)); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		return nil
	}}, nil
}

func (l *rawConsulLocker) Close(context.Context) error {
	l.transport.CloseIdleConnections()
	return nil
}

// consulLock is the Lock of github.com/hashicorp/consul/api, which opens a session for each
// lock. It has no lock-delay, which would keep a lock from all clients for 15 s after its holder
// died: no holder dies here.
func consulLock() bench.Contender {
	return bench.Contender{Name: "consul/api", Can: bench.CanWait | bench.CanRenew, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		c, err := consulConfig(cfg.URL)
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
