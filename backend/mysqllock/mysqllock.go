package mysqllock

import (
	"crypto/rand"
	"database/sql"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/conns"
	"github.com/holdfast-io/holdfast/internal/sqllease"
)

const (
	backendName   = "mysql"
	defaultPrefix = "holdfast_"
	defaultConns  = 8
)

// Config says which database to use, and how.
type Config struct {
	// Conn is how to connect, as mysql.ParseDSN makes it, with a database. It is copied;
	// what this package needs of it is set. Required.
	Conn *mysql.Config
	// Prefix of the names of the tables: 1 to 32 characters of a-z 0-9 _, not beginning
	// with a digit. Default: "holdfast_". Optional.
	Prefix string
	// MaxConns is how many connections there are at most, 3 to 1000. Default: 8. Optional.
	MaxConns int
	// Logger is told what is nobody's error. Default: none. Optional.
	Logger *slog.Logger
}

// Backend keeps leases in a MySQL or MariaDB database. It implements backend.Backend; its
// methods may be called at once from many goroutines. Make it with Open or New.
type Backend struct {
	db     *sql.DB
	conns  int       // at most
	open   conns.Set // those there are
	log    *slog.Logger
	names  *strings.Replacer // @, $@, $NOW and $READONLY in statements
	texts  sync.Map          // statements with those put in, by what they were
	floor  atomic.Int64      // meta.last_floor as it was read last; it only rises
	leases *sqllease.Leases  // what does not depend on the database
	syncs  string            // what the row is called that this value writes: see store.Sync

	closing sync.Once
}

var _ backend.Backend = (*Backend)(nil)

// New makes a backend on a database. It sends nothing yet. The tables are made by the
// first call, where they are not there and the user may.
//
// Errors: *backend.InvalidError for a field that is out of bounds.
func New(cfg Config) (*Backend, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, err
	}
	b := &Backend{
		conns: cfg.MaxConns, log: cfg.Logger,
		names: words(cfg.Prefix), syncs: rand.Text(),
	}
	b.leases = sqllease.New(sqllease.Config{
		Store: store{b}, Name: backendName, Caps: b.Capabilities(), Quick: maxQuick,
		Rest:  sqllease.Rest{Least: 2 * time.Millisecond, Longest: 250 * time.Millisecond}, //nolint:mnd // see doc.go
		Conns: cfg.MaxConns, Logger: b.log,
	})
	c, err := configure(cfg.Conn, b.leases.Life(), &b.open)
	if err != nil {
		b.leases.Close()
		return nil, unavailable("open", false, err)
	}
	b.db = sql.OpenDB(c)
	b.db.SetMaxOpenConns(b.conns)
	b.db.SetMaxIdleConns(b.conns)
	b.db.SetConnMaxIdleTime(idleTime)
	return b, nil
}

// now is the server's clock: microseconds since 1970, in UTC, at the beginning of the
// statement. UNIX_TIMESTAMP would take local time for it, which is not unique.
const now = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`

// isReadOnly is whether the server is read-only, 0 or 1. The variable is a number, and from
// MariaDB 12 on a word.
const isReadOnly = `CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF')`

// words are what stands for something else in statements.
func words(prefix string) *strings.Replacer {
	return strings.NewReplacer("@@", "@@", "$@", "@", "@", prefix, "$NOW", now, "$READONLY", isReadOnly)
}

func (c *Config) withDefaults() error {
	if c.Conn == nil {
		return &backend.InvalidError{Field: "conn", Value: "nil", Bound: "given"}
	}
	if c.Conn.DBName == "" {
		return &backend.InvalidError{Field: "database", Value: `""`, Bound: "given"}
	}
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	const longest, most = 32, 1000
	if len(c.Prefix) > longest || strings.Trim(c.Prefix, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || c.Prefix[0] <= '9' {
		return &backend.InvalidError{Field: "prefix", Value: strconv.QuoteToGraphic(c.Prefix), Bound: "1 to 32 characters of a-z 0-9 _, not beginning with a digit"}
	}
	if c.MaxConns == 0 {
		c.MaxConns = defaultConns
	}
	if c.MaxConns < 3 || c.MaxConns > most {
		return &backend.InvalidError{Field: "max_conns", Value: strconv.Itoa(c.MaxConns), Bound: "3 to 1000"}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Capabilities says what can be done. Nothing is pushed: the servers have no
// notifications.
func (b *Backend) Capabilities() backend.Capabilities {
	return sqllease.Capabilities(backendName, false)
}

// Close ends the goroutines and connections, and the calls under way with ErrClosed.
// Leases stay. Closing again does nothing.
func (b *Backend) Close() error {
	b.closing.Do(func() {
		b.leases.Close()
		b.open.HangUp(hangUpTime)
		_ = b.db.Close()
	})
	return nil
}
