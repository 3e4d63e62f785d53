package pglock

import (
	"context"
	"crypto/rand"
	"hash/fnv"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/conns"
	"github.com/holdfast-io/holdfast/internal/sqllease"
)

const (
	backendName   = "postgres"
	defaultSchema = "holdfast"
	defaultConns  = 8
)

// Config says which database to use, and how.
type Config struct {
	// Conn is how to connect, as pgx.ParseConfig makes it. It is copied. Required.
	Conn *pgx.ConnConfig
	// Schema is the schema of the tables: 1 to 48 characters of a-z 0-9 _, not beginning
	// with a digit. Default: "holdfast". Optional.
	Schema string
	// Deaf is for a pooler in between that does not keep a connection for a client, as
	// PgBouncer in transaction mode: hand-overs are found by timer, there are no pushes,
	// no events and no prepared statements. Optional.
	Deaf bool
	// MaxConns is how many connections there are at most, without the one that listens
	// and those of Watch, 3 to 1000. Default: 8. Optional.
	MaxConns int
	// Logger is told what is nobody's error: a connection that was lost, notifications
	// that do not come. Default: none. Optional.
	Logger *slog.Logger
}

// Backend keeps leases in a PostgreSQL database. It implements backend.Backend; its
// methods may be called at once from many goroutines. Make it with Open or New.
type Backend struct {
	conf *pgx.ConnConfig
	pool *pgxpool.Pool
	log  *slog.Logger
	deaf bool
	addr string // the channel of this value; empty: it is deaf

	schema       string // quoted
	eventChannel string
	statements   sync.Map // query with @ -> query
	idleLimit    string
	lockLimit    string

	leases   *sqllease.Leases // what does not depend on the database
	syncs    string           // what the row is called that this value writes: see store.Sync
	toListen chan struct{}    // capacity 1, sent to without waiting, never closed

	conns   conns.Set
	closing sync.Once
}

var _ backend.Backend = (*Backend)(nil)

const (
	// idleLimit is how long the server lets a process sleep with locks taken. It is
	// much less than what anybody would wait, and much more than a busy machine sleeps.
	idleLimit = 5 * time.Second
	lockLimit = 250 * time.Millisecond // then others go on without it
)

// New makes a backend on a database. It sends nothing yet. The tables are made by the
// first call, where they are not there and the role may.
//
// Errors: *backend.InvalidError for a field that is out of bounds.
func New(cfg Config) (*Backend, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, err
	}
	b := &Backend{
		log: cfg.Logger, deaf: cfg.Deaf, schema: pgx.Identifier{cfg.Schema}.Sanitize(), eventChannel: "holdfast_" + hash(cfg.Schema),
		idleLimit: millis(idleLimit), lockLimit: millis(lockLimit),
		toListen: make(chan struct{}, 1), syncs: rand.Text(),
	}
	quick := 0
	if !b.deaf {
		b.addr = "holdfast_" + strings.ToLower(rand.Text())
		quick = maxQuick
	}
	const untold = 500 * time.Millisecond // while no notifications come
	b.leases = sqllease.New(sqllease.Config{
		Store: store{b}, Name: backendName, Caps: b.Capabilities(), Addr: b.addr, Quick: quick,
		Rest: sqllease.Rest{Least: untold, Longest: untold}, Conns: cfg.MaxConns, Logger: b.log,
	})
	b.conf = b.configure(cfg.Conn)
	pc, err := b.poolConfig(cfg.MaxConns)
	if err == nil {
		b.pool, err = pgxpool.NewWithConfig(b.life(), pc)
	}
	if err != nil {
		b.leases.Close()
		return nil, unavailable("open", false, err)
	}
	if !b.deaf {
		b.leases.Go(b.listenForLetters)
	}
	return b, nil
}

// life ends when the backend is closed.
func (b *Backend) life() context.Context { return b.leases.Life() }

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func hash(s string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return strconv.FormatUint(h.Sum64(), 36) //nolint:mnd // letters and digits
}

func (c *Config) withDefaults() error {
	if c.Conn == nil {
		return &backend.InvalidError{Field: "conn", Value: "nil", Bound: "given"}
	}
	if c.Schema == "" {
		c.Schema = defaultSchema
	}
	const most = 1000
	if err := validateSchema(c.Schema); err != nil {
		return err
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

func validateSchema(name string) error {
	const longest = 48
	if len(name) > longest || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || name[0] <= '9' || strings.HasPrefix(name, "pg_") {
		return &backend.InvalidError{Field: "schema", Value: strconv.QuoteToGraphic(name), Bound: "1 to 48 characters of a-z 0-9 _, not beginning with a digit or pg_"}
	}
	return nil
}

// sql is a query for the schema in use.
func (b *Backend) sql(query string) string {
	if q, ok := b.statements.Load(query); ok {
		return q.(string) //nolint:forcetypeassert // nothing else is stored
	}
	q := strings.ReplaceAll(query, "@", b.schema+".")
	b.statements.Store(query, q)
	return q
}

// Capabilities says what can be done. A value that is deaf pushes nothing.
func (b *Backend) Capabilities() backend.Capabilities {
	return sqllease.Capabilities(backendName, !b.deaf)
}

// Close ends the goroutines and connections, and the calls under way with ErrClosed.
// Leases stay. Closing again does nothing.
func (b *Backend) Close() error {
	b.closing.Do(func() {
		b.leases.Close()
		b.conns.HangUp(hangUpTime)
		b.pool.Close()
	})
	return nil
}
