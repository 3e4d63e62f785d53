package mysqllock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"log/slog"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/connlease"
	"github.com/holdfast-io/holdfast/internal/retry"
)

const (
	getlockName   = "mysql+getlock"
	getlockPrefix = "holdfast_getlock_"
	getlockConns  = 4
)

// UserLocksConfig configures a UserLocks backend.
type UserLocksConfig struct {
	// Conn is the connection configuration, as mysql.ParseDSN returns it, with a database. It is
	// copied, and this package sets what it needs. Required.
	Conn *mysql.Config
	// Prefix is the prefix of the names of the tables, and a part of the name of every lock:
	// values with different prefixes are independent of each other. 1 to 32 characters of a-z 0-9
	// _, not beginning with a digit. Default: "holdfast_getlock_". Optional.
	Prefix string
	// Logger receives the errors that no caller gets. Default: slog.Default(). Optional.
	Logger *slog.Logger
}

// UserLocks keeps locks as user locks (GET_LOCK) of a MariaDB or MySQL server. It implements
// backend.Backend. Its methods are safe for concurrent use. Use OpenUserLocks or NewUserLocks to
// make one.
//
// A session is a connection, which has all its locks. The server frees them when the connection
// ends, however it ends. It ends the connection itself when nothing arrived on it for the TTL, in
// whole seconds (wait_timeout). The holder learns of the end of its connection immediately, and
// of a break within half a second.
//
// There are only exclusive locks, and no timed leases and no events. Inspect does not return waiters, and they are served
// in no promised order. A lock is only ever tried, never waited for in the server, so that one connection is enough for
// all of them. A session with waiters tries all of their locks together, after an eighth of the time in
// which nothing changed, but not before 2 ms and at the latest after 250 ms, give or take an
// eighth.
//
// The name of a lock in the server is "hf" and 240 bits of the SHA-256 of the database, the
// prefix and its name: no two names are the same. The token of a lease is the number of its row
// (AUTO_INCREMENT).
//
// Break asks the holder to release the lock. A holder that does not within five seconds loses its connection, with all its
// locks (KILL, which a user may use on their own connections).
//
// OpenSession also returns ErrGalera, for a node of a Galera cluster, whose user locks are its own, ErrForgetful and
// ErrNewer. All are ErrUnsupported.
type UserLocks struct {
	verbs // of leases

	db     *sql.DB // for what needs no lock
	open   connect.Set
	conf   *mysql.Config
	log    *slog.Logger
	prefix string
	names  *strings.Replacer

	leases *connlease.Leases
}

var _ backend.Backend = (*UserLocks)(nil)

// OpenUserLocks returns a backend for a URL, mysql+getlock://user:password@host:3306/database,
// with the parameters of Open except max_conns. The URL's settings override cfg. Nothing is sent until
// the first call.
//
// Errors: *backend.InvalidError for a bad URL, which includes an unknown parameter. It never
// contains the password.
func OpenUserLocks(ctx context.Context, rawURL string, cfg UserLocksConfig) (*UserLocks, error) {
	if err := connect.Context(ctx); err != nil {
		return nil, err
	}
	u, err := parseURL(rawURL, Config{Prefix: cfg.Prefix}, getlockName, "ca", "connect_timeout", "prefix", "socket", "tls")
	if err != nil {
		return nil, err
	}
	return NewUserLocks(UserLocksConfig{Conn: u.Conn, Prefix: u.Prefix, Logger: cfg.Logger})
}

// NewUserLocks returns a backend on a database. It sends nothing yet. The first call creates the
// tables, where they do not exist and the user has the privilege.
//
// Errors: *backend.InvalidError for a field that is out of bounds.
func NewUserLocks(cfg UserLocksConfig) (*UserLocks, error) {
	same := Config{Conn: cfg.Conn, Prefix: cmp.Or(cfg.Prefix, getlockPrefix), Logger: cfg.Logger}
	if err := same.withDefaults(); err != nil {
		return nil, err
	}
	b := &UserLocks{conf: same.Conn, log: same.Logger, prefix: same.Prefix, names: words(same.Prefix)}
	b.leases = connlease.New(connlease.Config{Store: getlockStore{b}, Caps: b.Capabilities(), Rest: retry.Rest{Least: leastRest, Longest: longestRest}, LookEvery: lookEvery})
	b.verbs = b.leases
	c, err := configure(cfg.Conn, b.leases.Life(), &b.open)
	if err != nil {
		b.leases.Close()
		return nil, unavailableAt(getlockName, "open", false, err)
	}
	b.db = sql.OpenDB(c)
	b.db.SetMaxOpenConns(getlockConns)
	b.db.SetMaxIdleConns(getlockConns)
	b.db.SetConnMaxIdleTime(idleTime)
	return b, nil
}

const (
	// lookEvery is how often a session that has locks reads whether one was broken.
	lookEvery = 400 * time.Millisecond
	// A session with waiters rests for that long: nothing can wake it.
	leastRest, longestRest = 2 * time.Millisecond, 250 * time.Millisecond
)

// lockName returns the server's name of a lock: in 64 characters, which it does not fold.
func (b *UserLocks) lockName(name string) string {
	const bits = 30
	sum := sha256.Sum256([]byte(b.conf.DBName + "\x00" + b.prefix + "\x00" + name))
	return "hf" + hex.EncodeToString(sum[:bits])
}

// sql inserts the expression for the server's clock and the prefix of the tables.
func (b *UserLocks) sql(query string) string { return b.names.Replace(query) }

// Capabilities returns the capabilities of user locks.
func (b *UserLocks) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Name: getlockName, Sessions: true, Bound: true, Tied: true, LossPush: true, TokenKind: "clock",
		MinTTL: time.Second, MaxTTL: 24 * time.Hour, ExpiryLag: 3 * time.Second,
	}
}

// Close ends the sessions that were opened here, with their locks, the connections and the
// goroutines, and the calls in progress with ErrClosed. A second Close does nothing.
func (b *UserLocks) Close() error {
	b.leases.Close()
	b.open.HangUp(hangUpTime)
	_ = b.db.Close()
	return nil
}
