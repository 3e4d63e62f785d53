package e2e_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/backend/etcdlock"
	"github.com/holdfast-io/holdfast/backend/k8slock"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/backend/redislock/goredis"
	"github.com/holdfast-io/holdfast/backend/redislock/redisfence"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/backend/remotelock"
	"github.com/holdfast-io/holdfast/backend/sqlitelock"
	"github.com/holdfast-io/holdfast/backend/zklock"
	"github.com/holdfast-io/holdfast/elector"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/fence/httpfence"
	"github.com/holdfast-io/holdfast/fence/sqlfence"
	"github.com/holdfast-io/holdfast/observe/health"
	"github.com/holdfast-io/holdfast/open"
	"github.com/holdfast-io/holdfast/rowlock"
	"github.com/holdfast-io/holdfast/server"
)

// Every exported constructor refuses nil in place of a context, a client, a function or a transaction, with
// a typed error, and nothing is opened. One that returns no error returns what refuses each call.
func TestNilToConstructors(t *testing.T) {
	t.Parallel()
	var none context.Context
	b := memlock.New()
	client, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(client.Close(context.WithoutCancel(t.Context())), b.Close()) })
	sqlGuard, err := sqlfence.New(sqlfence.Postgres, sqlfence.Config{})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := rowlock.New(rowlock.Postgres, rowlock.Config{Table: "stock", Key: "id"})
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", "postgres://127.0.0.1:1/none") // connects to nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	file := "sqlite://" + filepath.Join(t.TempDir(), "locks.db")
	second := func(_ any, err error) error { return err }
	for name, refusal := range map[string]func() error{
		"holdfast.New":           func() error { return second(holdfast.New(nil, holdfast.Config{})) },
		"elector.New":            func() error { return second(elector.New(nil, "leader", elector.Config{})) },
		"server.New":             func() error { return second(server.New(nil, server.Config{})) },
		"health.New, client":     func() error { return second(health.New(nil, b, health.Config{})) },
		"health.New, backend":    func() error { return second(health.New(client, nil, health.Config{})) },
		"open.Client":            func() error { return second(open.Client(none, file, holdfast.Config{})) },
		"open.URL":               func() error { return second(open.URL(none, file, open.Options{})) },
		"consullock.New":         func() error { return second(consullock.New(nil, consullock.Config{})) },
		"consullock.Open":        func() error { return second(consullock.Open(none, "consul://127.0.0.1:1", consullock.Config{})) },
		"etcdlock.New":           func() error { return second(etcdlock.New(nil, etcdlock.Config{})) },
		"etcdlock.Open":          func() error { return second(etcdlock.Open(none, "etcd://127.0.0.1:1", etcdlock.Config{})) },
		"k8slock.New":            func() error { return second(k8slock.New(nil, "https://127.0.0.1:1", k8slock.Config{})) },
		"k8slock.NewForConfig":   func() error { return second(k8slock.NewForConfig(nil, k8slock.Config{})) },
		"k8slock.Open":           func() error { return second(k8slock.Open(none, "kubernetes://", k8slock.Config{})) },
		"mysqllock.New":          func() error { return second(mysqllock.New(mysqllock.Config{})) },
		"mysqllock.Open":         func() error { return second(mysqllock.Open(none, "mysql://a@127.0.0.1:1/d", mysqllock.Config{})) },
		"mysqllock.NewUserLocks": func() error { return second(mysqllock.NewUserLocks(mysqllock.UserLocksConfig{})) },
		"mysqllock.OpenUserLocks": func() error {
			return second(mysqllock.OpenUserLocks(none, "mysql+getlock://a@127.0.0.1:1/d", mysqllock.UserLocksConfig{}))
		},
		"pglock.New":            func() error { return second(pglock.New(pglock.Config{})) },
		"pglock.NewPool":        func() error { return second(pglock.NewPool(nil, pglock.Config{})) },
		"pglock.NewDB, context": func() error { return second(pglock.NewDB(none, db, pglock.Config{})) },
		"pglock.NewDB, db":      func() error { return second(pglock.NewDB(t.Context(), nil, pglock.Config{})) },
		"pglock.Open":           func() error { return second(pglock.Open(none, "postgres://127.0.0.1:1/d", pglock.Config{})) },
		"pglock.NewAdvisory":    func() error { return second(pglock.NewAdvisory(pglock.AdvisoryConfig{})) },
		"pglock.OpenAdvisory": func() error {
			return second(pglock.OpenAdvisory(none, "postgres+advisory://127.0.0.1:1/d", pglock.AdvisoryConfig{}))
		},
		"redislock.New":  func() error { return second(redislock.New(nil, redislock.Config{})) },
		"redislock.Open": func() error { return second(redislock.Open(none, "redis://127.0.0.1:1", redislock.Config{})) },
		"goredis.New":    func() error { return second(goredis.New(nil, redislock.Config{})) },
		"redlock.New":    func() error { return second(redlock.New(nil, redlock.Config{})) },
		"redlock.Open": func() error {
			return second(redlock.Open(none, "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", redlock.Config{}))
		},
		"remotelock.Open":           func() error { return second(remotelock.Open(none, "holdfast://127.0.0.1:1", remotelock.Config{})) },
		"sqlitelock.Open":           func() error { return second(sqlitelock.Open(none, file, sqlitelock.Config{})) },
		"zklock.New":                func() error { return second(zklock.New(zklock.Config{})) },
		"zklock.Open":               func() error { return second(zklock.Open(none, "zookeeper://127.0.0.1:1", zklock.Config{})) },
		"fence.Guard.Do":            func() error { return fence.NewGuard().Do("stock", 1, nil) },
		"httpfence.Handler":         func() error { return second(httpfence.Handler(nil, httpfence.Config{})) },
		"httpfence.Handler, config": func() error { return second(httpfence.Handler(http.NotFoundHandler(), httpfence.Config{})) },
		"redisfence.New":            func() error { return redisfence.New(nil).Set(t.Context(), "stock", "41", 1) },
		"redisfence.Rueidis":        func() error { return redisfence.New(redisfence.Rueidis(nil)).Set(t.Context(), "stock", "41", 1) },
		"goredis.Eval":              func() error { return redisfence.New(goredis.Eval(nil)).Set(t.Context(), "stock", "41", 1) },
		"sqlfence.Migrate":          func() error { return sqlGuard.Migrate(t.Context(), nil) },
		"sqlfence.Do, context":      func() error { return sqlGuard.Do(none, db, "stock", 1, func(*sql.Tx) error { return nil }) },
		"sqlfence.Do, db":           func() error { return sqlGuard.Do(t.Context(), nil, "stock", 1, func(*sql.Tx) error { return nil }) },
		"sqlfence.Do, write":        func() error { return sqlGuard.Do(t.Context(), db, "stock", 1, nil) },
		"sqlfence.Check":            func() error { return sqlGuard.Check(t.Context(), nil, "stock", 1) },
		"sqlfence.CheckPgx, guard": func() error {
			return sqlfence.CheckPgx(t.Context(), nil, sqlfence.PgxTx[sqlfence.PgxTag, pgx.Row](nil), "stock", 1)
		},
		"sqlfence.CheckPgx, tx": func() error {
			return sqlfence.CheckPgx(t.Context(), sqlGuard, sqlfence.PgxTx[sqlfence.PgxTag, pgx.Row](nil), "stock", 1)
		},
		"rowlock.SQL": func() error { return second(rows.Lock(t.Context(), rowlock.SQL(nil), rowlock.Request{Keys: []any{1}})) },
		"rowlock.Pgx": func() error {
			return second(rows.Lock(t.Context(), rowlock.Pgx(rowlock.PgxTx[pgx.Rows](nil)), rowlock.Request{Keys: []any{1}}))
		},
		"rowlock.Name":    func() error { return rowlock.Name(t.Context(), rowlock.SQL(nil), "order:7") },
		"rowlock.TryName": func() error { return rowlock.TryName(t.Context(), rowlock.SQL(nil), "order:7") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := refusal()
			_, guard := errors.AsType[*fence.InvalidError](err)
			if _, ok := errors.AsType[*holdfast.InvalidError](err); !ok && !guard {
				t.Errorf("%v, want an *InvalidError", err)
			}
		})
	}
}
