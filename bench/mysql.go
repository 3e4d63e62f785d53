package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/bench"
)

// mysqlConns is the number of connections of mysqllock, and so of the bare statements.
const mysqlConns = 8

// mysqlEngine returns the engine at a URL of mysqllock, for MariaDB too. The server counts statements,
// not round trips: a request with several statements counts as several requests.
func mysqlEngine(ctx context.Context, raw string) (*bench.Engine, error) {
	db, err := mysqlPool(raw)
	if err != nil {
		return nil, err
	}
	e := &bench.Engine{
		Name: "mysql", URL: raw, Contenders: []bench.Contender{ours(), rawMySQL()},
		Close: db.Close,
		Meter: func(ctx context.Context) (func() (int64, error), error) { return meterMySQL(ctx, db) },
	}
	if err := db.QueryRowContext(ctx, `SELECT VERSION()`).Scan(&e.Version); err != nil {
		return nil, errors.Join(&backend.UnavailableError{Backend: "mysql", Op: "ask for its version", Err: err}, db.Close())
	}
	e.Version, _, _ = strings.Cut(e.Version, "-")
	return e, nil
}

// mysqlPool opens a pool to the server of a mysqllock URL. Statements
// carry their arguments, as mysqllock's do, so each is one round trip. Of the parameters only tls
// is used.
func mysqlPool(raw string) (*sql.DB, error) {
	bad := &backend.InvalidError{Field: "backend", Value: `"mysql://…"`, Bound: "mysql://user:password@host:port/database"}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, bad
	}
	address, ok := backend.Endpoint(u.Host, "3306")
	if !ok {
		return nil, bad
	}
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.DBName, cfg.TLSConfig = "tcp", address, strings.TrimPrefix(u.Path, "/"), "preferred"
	if mode := u.Query().Get("tls"); mode != "" {
		cfg.TLSConfig = mode
	}
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.InterpolateParams = true
	// The driver then makes each connection from a copy, in which it records that a server has no
	// TLS.
	own := mysql.BeforeConnect(func(context.Context, *mysql.Config) error { return nil })
	if err := cfg.Apply(own); err != nil {
		return nil, bad
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil { // its error may contain the password
		return nil, bad
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(mysqlConns)
	db.SetMaxIdleConns(mysqlConns)
	return db, nil
}

// meterMySQL reads the server's own counter.
func meterMySQL(ctx context.Context, db *sql.DB) (func() (int64, error), error) {
	before, err := questions(ctx, db)
	if err != nil {
		return nil, err
	}
	return func() (int64, error) {
		after, err := questions(ctx, db)
		return after - before - 1, err // without the query for it
	}, nil
}

func questions(ctx context.Context, db *sql.DB) (int64, error) {
	var name string
	var n int64
	if err := db.QueryRowContext(ctx, `SHOW GLOBAL STATUS LIKE 'Questions'`).Scan(&name, &n); err != nil {
		return 0, fmt.Errorf("status: %w", err)
	}
	return n, nil
}

// rawMySQL is the minimum that can be called a lock in a table: a row that is inserted and deleted,
// through the driver and with as many connections as mysqllock has. It has no token and no queue,
// it cannot wait, and nothing ends with its owner: it is a limit, not a lock.
func rawMySQL() bench.Contender {
	return bench.Contender{Name: "raw", Open: func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		db, err := mysqlPool(cfg.URL)
		if err != nil {
			return nil, err
		}
		const table = `CREATE TABLE IF NOT EXISTS holdfast_bench (name VARBINARY(512) PRIMARY KEY, owner VARBINARY(64) NOT NULL) ENGINE=InnoDB`
		if _, err := db.ExecContext(ctx, table); err != nil {
			return nil, errors.Join(fmt.Errorf("create: %w", err), db.Close())
		}
		return &rawMySQLLocker{db: db}, nil
	}}
}

type rawMySQLLocker struct{ db *sql.DB }

func (l *rawMySQLLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	owner := string(backend.NewLeaseID())
	if _, err := l.db.ExecContext(ctx, `INSERT INTO holdfast_bench VALUES (?, ?)`, name, owner); err != nil {
		return bench.Held{}, fmt.Errorf("insert: %w", err)
	}
	return bench.Held{Unlock: func(ctx context.Context) error {
		result, err := l.db.ExecContext(ctx, `DELETE FROM holdfast_bench WHERE name = ? AND owner = ?`, name, owner)
		if err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		if n, err := result.RowsAffected(); err != nil || n != 1 {
			return errors.Join(errors.New("delete: the row was not there"), err)
		}
		return nil
	}}, nil
}

func (l *rawMySQLLocker) Close(ctx context.Context) error {
	_, err := l.db.ExecContext(ctx, `TRUNCATE TABLE holdfast_bench`)
	if err := errors.Join(err, l.db.Close()); err != nil {
		return fmt.Errorf("truncate: %w", err)
	}
	return nil
}
