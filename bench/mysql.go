package main

import (
	"context"
	"crypto/sha1" //nolint:gosec // it makes a long name short; nothing rests on its strength
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
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
	db, err := mysqlPool(raw, mysqlConns)
	if err != nil {
		return nil, err
	}
	e := &bench.Engine{
		Name: "mysql", URL: raw, Contenders: []bench.Contender{ours(), rawMySQL(), getLockLoop()},
		Ping: func(ctx context.Context) error {
			if _, err := db.ExecContext(ctx, `DO 1`); err != nil {
				return fmt.Errorf("do: %w", err)
			}
			return nil
		},
		Close: db.Close,
		Meter: func(ctx context.Context) (func() (bench.Load, error), error) { return meterMySQL(ctx, db) },
	}
	if err := db.QueryRowContext(ctx, `SELECT VERSION()`).Scan(&e.Version); err != nil {
		return nil, errors.Join(&backend.UnavailableError{Backend: "mysql", Op: "ask for its version", Err: err}, db.Close())
	}
	e.Version, _, _ = strings.Cut(e.Version, "-")
	return e, nil
}

// mysqlPool opens a pool of at most conns connections to the server of a mysqllock URL. Statements
// carry their arguments, as mysqllock's do, so each is one round trip. Of the parameters only tls
// is used.
func mysqlPool(raw string, conns int) (*sql.DB, error) {
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
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

// meterMySQL reads the server's own counter.
func meterMySQL(ctx context.Context, db *sql.DB) (func() (bench.Load, error), error) {
	before, err := questions(ctx, db)
	if err != nil {
		return nil, err
	}
	return func() (bench.Load, error) {
		after, err := questions(ctx, db)
		// The second reading includes its own query.
		n := after - before - 1
		return bench.Load{Requests: n, Commands: n}, err
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
	return bench.Contender{Name: "raw", Kind: bench.KindRaw, Open: func(ctx context.Context, cfg bench.Config) (bench.Locker, error) {
		db, err := mysqlPool(cfg.URL, mysqlConns)
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

// getLockLoop is what people write by hand on MySQL and MariaDB: GET_LOCK, which waits in the
// server, repeated until the lock is acquired. From then until its release each lock has a
// connection of its own. A name has at most 64 characters, so longer ones are hashed. The server
// decides which waiter is next.
func getLockLoop() bench.Contender {
	return bench.Contender{Name: "GET_LOCK loop", Kind: bench.KindLoop, Can: bench.CanWait, Open: func(_ context.Context, cfg bench.Config) (bench.Locker, error) {
		db, err := mysqlPool(cfg.URL, min(max(cfg.Parallel, 1), mostGetLocks))
		if err != nil {
			return nil, err
		}
		return &getLocker{db: db}, nil
	}}
}

const (
	// mostGetLocks bounds the connections: servers allow 151 by default, and ours are
	// started with room for 300. A caller that finds none waits for one.
	mostGetLocks = 128
	getLockWait  = 10 // seconds
)

type getLocker struct{ db *sql.DB }

func (l *getLocker) Lock(ctx context.Context, name string) (bench.Held, error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return bench.Held{}, fmt.Errorf("connection: %w", err)
	}
	sum := sha1.Sum([]byte(name)) //nolint:gosec // see the import
	key := hex.EncodeToString(sum[:])
	for {
		var got sql.NullInt64
		err := conn.QueryRowContext(ctx, `SELECT GET_LOCK(?, ?)`, key, getLockWait).Scan(&got)
		switch {
		case err != nil:
			return bench.Held{}, errors.Join(fmt.Errorf("GET_LOCK: %w", err), hangUp(conn))
		case got.Int64 == 1:
			return bench.Held{Unlock: func(ctx context.Context) error { return unlock(ctx, conn, key) }}, nil
		}
	}
}

func unlock(ctx context.Context, conn *sql.Conn, key string) error {
	var was sql.NullInt64
	if err := conn.QueryRowContext(ctx, `SELECT RELEASE_LOCK(?)`, key).Scan(&was); err != nil {
		return errors.Join(fmt.Errorf("RELEASE_LOCK: %w", err), hangUp(conn))
	}
	if was.Int64 != 1 {
		return errors.Join(errors.New("RELEASE_LOCK: it was not held any more"), hangUp(conn))
	}
	if err := conn.Close(); err != nil {
		return fmt.Errorf("return the connection to the pool: %w", err)
	}
	return nil
}

// hangUp ends a connection that may hold the lock, instead of returning it to the pool.
func hangUp(conn *sql.Conn) error {
	err := conn.Raw(func(any) error { return driver.ErrBadConn })
	if err != nil && !errors.Is(err, driver.ErrBadConn) && !errors.Is(err, sql.ErrConnDone) {
		return fmt.Errorf("hang up: %w", err)
	}
	return nil
}

func (l *getLocker) Close(context.Context) error {
	if err := l.db.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
