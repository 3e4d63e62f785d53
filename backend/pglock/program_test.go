package pglock_test

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// Every connection has what the pool of the program does with it: those of requests, of notifications and
// of events, and those of advisory locks. The user comes from BeforeConnect alone, as a token would.
func TestProgramsPool(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	conf, err := pgxpool.ParseConfig(s.URLOf("nobody", s.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	var before, after atomic.Int64
	conf.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		before.Add(1)
		c.User = "postgres"
		return nil
	}
	conf.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		after.Add(1)
		_, err := c.Exec(ctx, "SET search_path = pg_catalog; SET lock_timeout = '1ms'")
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b, err := pglock.NewPool(pool, pglock.Config{})
	leasetest.Opened(t, b, err)
	id := leasetest.Session(t, b, time.Minute, nil)
	req := leasetest.Ask("n", id)
	leasetest.Take(t, b, req)
	queued := leasetest.Start(t, b, leasetest.Ask("n", id))
	leasetest.InQueue(t, b, "n", 1)
	events, ended, stop := began(t, b)
	next(t, events, ended, backend.EventWatching)
	stop()
	leasetest.Give(t, b, req)
	if g := <-queued; g.Err != nil {
		t.Error(g.Err)
	}
	advisory, err := pglock.NewAdvisory(pglock.AdvisoryConfig{Conn: conf.ConnConfig, BeforeConnect: conf.BeforeConnect, AfterConnect: conf.AfterConnect})
	leasetest.Opened(t, advisory, err)
	leasetest.Take(t, advisory, leasetest.Ask("n", leasetest.Session(t, advisory, time.Minute, nil)))
	const least = 5 // a request, the notifications, the events, and two of advisory locks
	if before.Load() < least || before.Load() != after.Load() {
		t.Errorf("BeforeConnect was called %d times, AfterConnect %d times", before.Load(), after.Load())
	}
	if n := pool.Stat().TotalConns(); n != 0 {
		t.Errorf("the pool of the program has %d connections", n)
	}
}

// A program with database/sql passes its *sql.DB, of which one connection is borrowed.
func TestNewDB(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	db, err := sql.Open("pgx", s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	b, err := pglock.NewDB(t.Context(), db, pglock.Config{})
	leasetest.Opened(t, b, err)
	if b.Capabilities().Push {
		t.Error("it listens to notifications")
	}
	id := leasetest.Session(t, b, time.Minute, nil)
	req := leasetest.Ask("n", id)
	leasetest.Take(t, b, req)
	leasetest.Give(t, b, req)
	if n := db.Stats().InUse; n != 0 {
		t.Errorf("%d connections of the program are in use", n)
	}
	other := sql.OpenDB(foreign{})
	t.Cleanup(func() { _ = other.Close() })
	for name, db := range map[string]*sql.DB{"none": nil, "another driver": other} {
		_, err := pglock.NewDB(t.Context(), db, pglock.Config{})
		if invalid, ok := errors.AsType[*backend.InvalidError](err); !ok || invalid.Field != "db" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := pglock.NewPool(nil, pglock.Config{}); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("no pool: %v", err)
	}
}

// foreign is a driver that is not of pgx.
type foreign struct{ driver.Conn }

func (f foreign) Connect(context.Context) (driver.Conn, error) { return f, nil }
func (foreign) Driver() driver.Driver                          { return nil }
func (foreign) Close() error                                   { return nil }

// The statements of Schema create what a role that may create nothing needs. Until then, and until it may use it, the errors tell
// what is missing.
func TestSchemaForOthers(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	for _, name := range []string{"", "shop"} {
		statements, err := pglock.Schema(name)
		if err != nil {
			t.Fatal(err)
		}
		role, schema := "locker"+name, cmp.Or(name, "holdfast")
		s.Exec("CREATE ROLE " + role + " LOGIN")
		conf, err := pgx.ParseConfig(s.URLOf(role, s.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		b, err := pglock.New(pglock.Config{Conn: conf, Schema: name})
		leasetest.Opened(t, b, err)
		opens := func() error {
			return b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
		}
		if err := opens(); !errors.Is(err, pglock.ErrNoSchema) || !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("without tables: %v; it has to be ErrNoSchema", err)
		}
		s.Exec(statements)
		if err := opens(); !errors.Is(err, backend.ErrRefused) || errors.Is(err, pglock.ErrNoSchema) {
			t.Errorf("without rights: %v; it has to be ErrRefused", err)
		}
		s.Exec("GRANT USAGE ON SCHEMA "+schema+" TO "+role, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "+schema+" TO "+role)
		leasetest.Take(t, b, leasetest.Ask("n", leasetest.Session(t, b, time.Minute, nil)))
	}
	if _, err := pglock.Schema("a-b"); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("a bad name: %v", err)
	}
}
