package mysqllock

import (
	"cmp"
	"crypto/rand"
	"database/sql"
	"log/slog"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/sqllease"
)

const (
	backendName   = "mysql"
	defaultPrefix = "holdfast_"
	defaultConns  = 8
)

// Config configures a Backend.
type Config struct {
	// Conn is the connection configuration, as mysql.ParseDSN returns it, with a database. It is
	// copied, and this package sets what it needs. Required.
	Conn *mysql.Config
	// Prefix is the prefix of the names of the tables: 1 to 32 characters of a-z 0-9 _, not
	// beginning with a digit. Default: "holdfast_". Optional.
	Prefix string
	// MaxConns is the maximum number of connections, 3 to 1000. Default: 8. Optional.
	MaxConns int
	// Logger receives the errors that no caller gets. Default: slog.Default(). Optional.
	Logger *slog.Logger
}

// verbs are the calls of backend.Backend.
type verbs = lockstate.Verbs

// Backend keeps leases in a MySQL or MariaDB database. It implements backend.Backend. Its methods
// are safe for concurrent use. Use Open or New to make one.
type Backend struct {
	verbs // of leases

	db     *sql.DB
	name   string            // of the database
	conns  int               // at most
	open   connect.Set       // the open ones
	names  *strings.Replacer // @, $@, $NOW, $CLOCK and $READONLY in statements
	texts  sync.Map          // statements with those replaced, by their originals
	floor  atomic.Int64      // the last known meta.last_floor; it only rises
	marks  atomic.Int64      // the last mark; those of one value are unlike those of another: see store.Quick
	leases *sqllease.Leases  // the part that does not depend on the database
	syncs  string            // the name of the row that this value writes: see store.Sync

	closing sync.Once
}

var _ backend.Backend = (*Backend)(nil)

// New returns a backend on a database. It sends nothing yet. The first call creates the tables,
// where they do not exist and the user has the privilege.
//
// Errors: *backend.InvalidError for a field that is out of bounds.
func New(cfg Config) (*Backend, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, err
	}
	b := &Backend{
		name: cfg.Conn.DBName, conns: cfg.MaxConns,
		names: words(cfg.Prefix), syncs: rand.Text(),
	}
	b.marks.Store(mathrand.Int64N(1 << 62))
	b.leases = sqllease.New(sqllease.Config{
		Store: store{b}, Caps: b.Capabilities(), Quick: maxQuick,
		Rest:  retry.Rest{Least: leastRest, Longest: longestRest},
		Conns: cfg.MaxConns,
	})
	b.verbs = b.leases
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

// now is the server's clock: microseconds since 1970, in UTC, at the beginning of the statement.
// UNIX_TIMESTAMP would take its argument for local time, which is not unique.
const now = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`

// clock is the same where it is evaluated, which may be after a wait of the statement for a row. The
// time zone of the session is UTC.
const clock = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))`

// isReadOnly is 1 for a read-only server, otherwise 0. The variable is a number, and from MariaDB
// 12 on a word.
const isReadOnly = `CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF')`

// words returns a replacer for the placeholders in statements.
func words(prefix string) *strings.Replacer {
	return strings.NewReplacer("@@", "@@", "$@", "@", "@", prefix, "$NOW", now, "$CLOCK", clock, "$READONLY", isReadOnly)
}

func (c *Config) withDefaults() error {
	if c.Conn == nil {
		return &backend.InvalidError{Field: "conn", Value: "nil", Bound: "given"}
	}
	if c.Conn.DBName == "" {
		return &backend.InvalidError{Field: "database", Value: `""`, Bound: "given"}
	}
	c.Prefix = cmp.Or(c.Prefix, defaultPrefix)
	c.MaxConns = cmp.Or(c.MaxConns, defaultConns)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if err := validatePrefix(c.Prefix); err != nil {
		return err
	}
	return sqllease.ValidateConns(c.MaxConns)
}

func validatePrefix(prefix string) error {
	const longest = 32
	if len(prefix) > longest || strings.Trim(prefix, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || prefix[0] <= '9' {
		return &backend.InvalidError{Field: "prefix", Value: strconv.QuoteToGraphic(prefix), Bound: "1 to 32 characters of a-z 0-9 _, not beginning with a digit"}
	}
	return nil
}

// Capabilities returns the capabilities. Nothing is pushed: the servers have no notifications.
func (b *Backend) Capabilities() backend.Capabilities {
	return sqllease.Capabilities(backendName, false)
}

// Close ends the goroutines and connections, and the calls in progress with ErrClosed. Leases
// stay in the database. A second Close does nothing.
func (b *Backend) Close() error {
	b.closing.Do(func() {
		b.leases.Close()
		b.open.HangUp(hangUpTime)
		_ = b.db.Close()
	})
	return nil
}
