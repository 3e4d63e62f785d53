package engines

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/bench"
)

// Consul returns the engine at a URL of consullock. Consul does not report how many requests it
// received.
func Consul(ctx context.Context, raw string) (*bench.Engine, error) {
	cfg, err := ConsulConfig(raw)
	if err != nil {
		return nil, err
	}
	locker, err := openRawConsul(cfg)
	if err != nil {
		return nil, err
	}
	self, err := askConsul(ctx, locker.client)
	if err != nil {
		locker.transport.CloseIdleConnections()
		return nil, err
	}
	version, _ := self["Config"]["Version"].(string)
	return &bench.Engine{
		Name: "consul", URL: raw, Version: version, Contenders: []bench.Contender{Ours(), rawConsul()},
		Ping: func(ctx context.Context) error {
			if _, _, err := locker.client.KV().Get("holdfast-bench", new(api.QueryOptions).WithContext(ctx)); err != nil {
				return fmt.Errorf("get: %w", err)
			}
			return nil
		},
		Close: func() error { locker.transport.CloseIdleConnections(); return nil },
	}, nil
}

func askConsul(ctx context.Context, client *api.Client) (map[string]map[string]any, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	self, err := client.Agent().Self()
	if err != nil {
		return nil, &backend.UnavailableError{Backend: "consul", Op: "ask for its version", Err: err}
	}
	return self, nil
}

// ConsulConfig returns the configuration of Consul's own client for a URL, without TLS.
func ConsulConfig(raw string) (*api.Config, error) {
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
	return bench.Contender{Name: "raw", Kind: bench.KindRaw, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		c, err := ConsulConfig(cfg.URL)
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
