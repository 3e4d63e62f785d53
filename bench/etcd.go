package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/bench"
)

// etcdEngine returns the engine at a URL of etcdlock. Over TLS it has our client alone.
func etcdEngine(ctx context.Context, raw string) (*bench.Engine, error) {
	client, endpoints, err := etcdClient(raw)
	if err != nil {
		return nil, err
	}
	defer client.Close() //nolint:errcheck // the answer is complete
	asked, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	status, err := client.Status(asked, endpoints[0])
	if err != nil {
		return nil, &backend.UnavailableError{Backend: "etcd", Op: "status", Err: err}
	}
	return &bench.Engine{
		Name: "etcd", URL: raw, Version: status.Version,
		Contenders: []bench.Contender{ours(), rawEtcd(), etcdConcurrency()},
		Meter:      func(ctx context.Context) (func() (int64, error), error) { return meterEtcd(ctx, endpoints) },
	}, nil
}

const connectTimeout = 10 * time.Second

// etcdClient returns etcd's own client for a URL, and the addresses of the members.
func etcdClient(raw string) (*clientv3.Client, []string, error) {
	cfg, err := etcdConfig(raw)
	if err != nil {
		return nil, nil, err
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, nil, &backend.UnavailableError{Backend: "etcd", Op: "connect", Err: err}
	}
	return client, cfg.Endpoints, nil
}

// etcdConfig returns the configuration of etcd's own client for a URL, without TLS.
func etcdConfig(raw string) (clientv3.Config, error) {
	cfg := clientv3.Config{Logger: zap.NewNop(), DialTimeout: connectTimeout}
	rest, ok := strings.CutPrefix(raw, "etcd://")
	if !ok {
		return cfg, &backend.InvalidError{Field: "backend", Value: `"etcds://…"`, Bound: "etcd://, without TLS, for what is not ours"}
	}
	rest, _, _ = strings.Cut(rest, "?") // only our client knows the parameters
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		name, password, _ := strings.Cut(rest[:i], ":")
		var errName, errPassword error
		cfg.Username, errName = url.PathUnescape(name)
		cfg.Password, errPassword = url.PathUnescape(password)
		if errName != nil || errPassword != nil {
			return cfg, &backend.InvalidError{Field: "backend", Value: `"etcd://…"`, Bound: "etcd://user:password@host:port, percent-encoded"}
		}
		rest = rest[i+1:]
	}
	for host := range strings.SplitSeq(strings.TrimSuffix(rest, "/"), ",") {
		endpoint, ok := backend.Endpoint(host, "2379")
		if !ok {
			return cfg, &backend.InvalidError{Field: "backend", Value: `"etcd://…"`, Bound: "etcd://host:port, hosts separated by commas"}
		}
		cfg.Endpoints = append(cfg.Endpoints, endpoint)
	}
	return cfg, nil
}

// rawEtcd is the minimum of requests for a lock on etcd: put and delete. Nothing is compared, and
// nothing ends with its owner: it is a limit, not a lock.
func rawEtcd() bench.Contender {
	return bench.Contender{Name: "raw", Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		client, _, err := etcdClient(cfg.URL)
		if err != nil {
			return nil, err
		}
		return &rawEtcdLocker{client: client}, nil
	}}
}

type rawEtcdLocker struct{ client *clientv3.Client }

func (l *rawEtcdLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	if _, err := l.client.Put(ctx, name, "1"); err != nil {
		return bench.Held{}, fmt.Errorf("put: %w", err)
	}
	return bench.Held{Unlock: func(ctx context.Context) error {
		if _, err := l.client.Delete(ctx, name); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		return nil
	}}, nil
}

func (l *rawEtcdLocker) Close(context.Context) error {
	if err := l.client.Close(); err != nil {
		return fmt.Errorf("close the client of etcd: %w", err)
	}
	return nil
}

// meterEtcd counts the messages that the members received from clients, also in streams.
func meterEtcd(ctx context.Context, endpoints []string) (func() (int64, error), error) {
	before, err := etcdMessages(ctx, endpoints)
	if err != nil {
		return nil, err
	}
	return func() (int64, error) {
		after, err := etcdMessages(ctx, endpoints)
		return after - before, err
	}, nil
}

func etcdMessages(ctx context.Context, endpoints []string) (int64, error) {
	var all int64
	for _, endpoint := range endpoints {
		n, err := etcdMetric(ctx, "http://"+endpoint+"/metrics", "grpc_server_msg_received_total{")
		if err != nil {
			return 0, fmt.Errorf("metrics of etcd: %w", err)
		}
		all += n
	}
	return all, nil
}

// etcdMetric returns the sum of the metrics whose names begin with prefix.
func etcdMetric(ctx context.Context, address, prefix string) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return 0, fmt.Errorf("request: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("get: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	var sum int64
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", line, err)
		}
		sum += int64(value)
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("read: %w", err)
	}
	return sum, nil
}

// etcdConcurrency is go.etcd.io/etcd/client/v3/concurrency. Two calls on one session would both
// hold the lock, so each call in progress has a session of its own. The sessions are kept for
// later calls. The token is the revision of the key, which its users take for one.
func etcdConcurrency() bench.Contender {
	return bench.Contender{
		Name: "etcd concurrency", Can: bench.CanWait | bench.CanRenew,
		Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
			client, _, err := etcdClient(cfg.URL)
			if err != nil {
				return nil, err
			}
			return &concurrencyLocker{client: client, ttl: seconds(cfg.TTL)}, nil
		},
	}
}

// seconds rounds up, as etcd counts.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

type concurrencyLocker struct {
	client *clientv3.Client
	ttl    int

	mu   sync.Mutex
	free []*concurrency.Session
}

func (l *concurrencyLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	session, err := l.session()
	if err != nil {
		return bench.Held{}, fmt.Errorf("session: %w", err)
	}
	mutex := concurrency.NewMutex(session, name)
	if err := mutex.Lock(ctx); err != nil {
		l.giveBack(session)
		return bench.Held{}, fmt.Errorf("lock: %w", err)
	}
	//nolint:gosec // revisions are above 0
	return bench.Held{Token: uint64(mutex.Header().Revision), Unlock: func(ctx context.Context) error {
		defer l.giveBack(session)
		return mutex.Unlock(ctx)
	}}, nil
}

func (l *concurrencyLocker) session() (*concurrency.Session, error) {
	l.mu.Lock()
	if n := len(l.free); n > 0 {
		s := l.free[n-1]
		l.free = l.free[:n-1]
		l.mu.Unlock()
		return s, nil
	}
	l.mu.Unlock()
	return concurrency.NewSession(l.client, concurrency.WithTTL(l.ttl))
}

func (l *concurrencyLocker) giveBack(s *concurrency.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, s)
}

func (l *concurrencyLocker) Close(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.free {
		if err := s.Close(); err != nil {
			return fmt.Errorf("close the session: %w", err)
		}
	}
	if err := l.client.Close(); err != nil {
		return fmt.Errorf("close the client: %w", err)
	}
	return nil
}
