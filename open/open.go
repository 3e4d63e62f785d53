// Package open opens a backend by its URL. It is the one public package that knows every backend. A
// program with a fixed backend should import only that backend.
//
//	memory://                      in this process
//	sqlite:///path                 a file, for the processes of one host
//	redis://host:6379              one Redis; rediss:// with TLS, redis+unix:// on a socket
//	redis+cluster://host1,host2    a Redis Cluster; redis+sentinel://host1,host2/name behind sentinels
//	redlock://host1,host2,host3    Redis servers that know nothing of each other; redlocks:// with TLS
//	etcd://host1:2379,host2:2379   etcd; etcds:// with TLS
//	zookeeper://host1,host2/path   ZooKeeper
//	consul://host:8500             Consul; consuls:// for TLS
//	postgres://host/database       PostgreSQL; postgres+advisory:// with its advisory locks
//	kubernetes://namespace         Kubernetes
//	mysql://host/database          MariaDB or MySQL; mysql+getlock:// with its user locks
//	holdfast://host:7420           a Holdfast server; holdfasts:// with TLS
//
// The package of each backend documents the parameters of its URLs. An unknown parameter is an
// error.
package open

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
	"github.com/holdfast-io/holdfast/backend/zklock"
)

// Options configure URL.
type Options struct {
	// Logger receives problems that no call returns, such as those of background work. Default:
	// slog.Default(). Optional.
	Logger *slog.Logger
}

type opener func(ctx context.Context, url string, o Options) (backend.Backend, error)

// schemes maps each scheme to its opener.
func schemes() map[string]opener {
	return map[string]opener{
		"memory":            openMemory,
		"sqlite":            openSQLite,
		"redis":             openRedis,
		"rediss":            openRedis,
		"redis+unix":        openRedis,
		"redis+cluster":     openRedis,
		"rediss+cluster":    openRedis,
		"redis+sentinel":    openRedis,
		"rediss+sentinel":   openRedis,
		"redlock":           openRedlock,
		"redlocks":          openRedlock,
		"etcd":              openEtcd,
		"etcds":             openEtcd,
		"zookeeper":         openZooKeeper,
		"consul":            openConsul,
		"consuls":           openConsul,
		"postgres":          openPostgres,
		"postgresql":        openPostgres,
		"postgres+advisory": openAdvisory,
		"kubernetes":        openKubernetes,
		"mysql":             openMySQL,
		"mysql+getlock":     openUserLocks,
		"holdfast":          openRemote,
		"holdfasts":         openRemote,
		"holdfast+unix":     openRemote,
	}
}

// Schemes returns the schemes that URL knows, sorted.
func Schemes() []string { return slices.Sorted(maps.Keys(schemes())) }

// Client opens the backend that the URL names, and returns a client of it. Closing the client closes the backend.
//
// Errors: those of URL; *holdfast.InvalidError for a field of cfg.
func Client(ctx context.Context, url string, cfg holdfast.Config) (*holdfast.Client, error) {
	b, err := URL(ctx, url, Options{Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	cfg.CloseBackend = true
	c, err := holdfast.New(b, cfg)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return c, nil
}

// URL opens the backend that the URL names. The caller closes it.
//
// Errors: *backend.InvalidError for an invalid URL, without its password; *backend.UnavailableError
// if the backend must be reached and cannot be; ctx's cause.
func URL(ctx context.Context, url string, o Options) (backend.Backend, error) {
	if ctx == nil {
		return nil, &backend.InvalidError{Field: "ctx", Value: "nil", Bound: "a context"}
	}
	scheme, _, ok := strings.Cut(url, ":")
	open, known := schemes()[scheme]
	if !ok || !known {
		return nil, &backend.InvalidError{
			Field: "backend", Value: shown(scheme, ok), Bound: "a URL whose scheme is one of " + strings.Join(Schemes(), ", "),
		}
	}
	b, err := open(ctx, url, o)
	if err != nil {
		return nil, fmt.Errorf("open the %s backend: %w", scheme, err)
	}
	return b, nil
}

// shown returns the part of an invalid URL that may appear in an error: never a possible password.
func shown(scheme string, ok bool) string {
	if !ok || len(scheme) > 20 {
		return "(not a URL)"
	}
	return fmt.Sprintf("%q", scheme+"://…")
}

func openMemory(_ context.Context, url string, _ Options) (backend.Backend, error) {
	if strings.TrimPrefix(url, "memory:") != "//" && url != "memory:" {
		return nil, &backend.InvalidError{Field: "backend", Value: `"memory://…"`, Bound: "memory://, without anything more"}
	}
	return memlock.New(), nil
}

func openSQLite(ctx context.Context, url string, o Options) (backend.Backend, error) {
	return sqlitelock.Open(ctx, url, sqlitelock.Config{Logger: o.Logger})
}

func openRedis(ctx context.Context, url string, o Options) (backend.Backend, error) {
	return redislock.Open(ctx, url, redislock.Config{Logger: o.Logger})
}

func openRedlock(ctx context.Context, url string, o Options) (backend.Backend, error) {
	return redlock.Open(ctx, url, redlock.Config{Logger: o.Logger})
}

func openEtcd(ctx context.Context, url string, o Options) (backend.Backend, error) {
	return etcdlock.Open(ctx, url, etcdlock.Config{Logger: o.Logger})
}

func openRemote(ctx context.Context, url string, o Options) (backend.Backend, error) {
	return remotelock.Open(ctx, url, remotelock.Config{Logger: o.Logger})
}

func openConsul(ctx context.Context, url string, o Options) (backend.Backend, error) {
	return consullock.Open(ctx, url, consullock.Config{Logger: o.Logger})
}

func openKubernetes(ctx context.Context, url string, o Options) (backend.Backend, error) {
	return k8slock.Open(ctx, url, k8slock.Config{Logger: o.Logger})
}

func openZooKeeper(ctx context.Context, url string, o Options) (backend.Backend, error) {
	return zklock.Open(ctx, url, zklock.Config{Logger: o.Logger})
}

func openAdvisory(ctx context.Context, url string, o Options) (backend.Backend, error) {
	return pglock.OpenAdvisory(ctx, url, pglock.AdvisoryConfig{Logger: o.Logger})
}

func openPostgres(ctx context.Context, url string, o Options) (backend.Backend, error) {
	return pglock.Open(ctx, url, pglock.Config{Logger: o.Logger})
}

func openUserLocks(ctx context.Context, url string, o Options) (backend.Backend, error) {
	return mysqllock.OpenUserLocks(ctx, url, mysqllock.UserLocksConfig{Logger: o.Logger})
}

func openMySQL(ctx context.Context, url string, o Options) (backend.Backend, error) {
	return mysqllock.Open(ctx, url, mysqllock.Config{Logger: o.Logger})
}
