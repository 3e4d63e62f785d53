package pglock

import (
	"cmp"
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
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/lockstate"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/sqllease"
)

const (
	backendName   = "postgres"
	defaultSchema = "holdfast"
	defaultConns  = 8
)

// Config configures a Backend.
type Config struct {
	// Conn is the connection configuration, as pgx.ParseConfig returns it. It is copied.
	// Required.
	Conn *pgx.ConnConfig
	// BeforeConnect and AfterConnect are those of a pgxpool.Config: the first may change the
	// configuration of each connection that is made, as for a password that is a token, and the
	// second prepare the connection. Our own settings are made after it. Optional.
	BeforeConnect func(context.Context, *pgx.ConnConfig) error
	AfterConnect  func(context.Context, *pgx.Conn) error
	// Schema is the schema of the tables: 1 to 48 characters of a-z 0-9 _, not beginning
	// with a digit. Default: "holdfast". Optional.
	Schema string
	// Deaf is for a pooler in between that does not keep a connection for a client, as PgBouncer
	// in transaction mode. Hand-overs are then found by timer, and there are no pushes, no events
	// and no prepared statements. Optional.
	Deaf bool
	// MaxConns is the maximum number of connections, without the one that listens and those of
	// Watch: 3 to 1000. Default: 8. Optional.
	MaxConns int
	// Logger receives the errors that no caller gets: a connection that was lost, notifications
	// that do not arrive. Default: slog.Default(). Optional.
	Logger *slog.Logger
}

// verbs are the calls of backend.Backend.
type verbs = lockstate.Verbs

// Backend keeps leases in a PostgreSQL database. It implements backend.Backend. Its methods are
// safe for concurrent use. Use Open or New to make one.
type Backend struct {
	verbs // of leases

	conf    *pgx.ConnConfig
	program connHooks
	pool    *pgxpool.Pool
	log     *slog.Logger
	deaf    bool
	addr    string // the channel of this value; empty: it does not listen

	schema       string // quoted
	eventChannel string

	leases   *sqllease.Leases // the part that does not depend on the database
	syncs    string           // the name of the row that this value writes: see store.Sync
	toListen chan struct{}    // capacity 1, sent to without waiting, never closed
	notifier notifier

	conns   connect.Set
	closing sync.Once
}

var _ backend.Backend = (*Backend)(nil)

// New returns a backend on a database. It sends nothing yet. The first call creates the tables,
// where they do not exist and the role has the privilege.
//
// Errors: *backend.InvalidError for a field that is out of bounds.
func New(cfg Config) (*Backend, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, err
	}
	b := &Backend{
		program: connHooks{before: cfg.BeforeConnect, after: cfg.AfterConnect}, log: cfg.Logger, deaf: cfg.Deaf, schema: pgx.Identifier{cfg.Schema}.Sanitize(), eventChannel: "holdfast_" + hash(cfg.Schema),
		toListen: make(chan struct{}, 1), syncs: rand.Text(), notifier: notifier{log: cfg.Logger, name: backendName},
	}
	quick := 0
	if !b.deaf {
		b.addr = "holdfast_" + strings.ToLower(rand.Text())
		b.program.settings = settingsOfLeases
		quick = maxQuick
	}
	const untold = 500 * time.Millisecond // while no notifications arrive
	b.leases = sqllease.New(sqllease.Config{
		Store: store{b}, Caps: b.Capabilities(), Addr: b.addr, Quick: quick,
		Rest: retry.Rest{Least: untold, Longest: untold}, Conns: cfg.MaxConns,
	})
	b.verbs = b.leases
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
		b.leases.Go(b.listenForNotifications)
	}
	return b, nil
}

// life returns the context that ends when the backend is closed.
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
	c.Schema = cmp.Or(c.Schema, defaultSchema)
	c.MaxConns = cmp.Or(c.MaxConns, defaultConns)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if err := validateSchema(c.Schema); err != nil {
		return err
	}
	return sqllease.ValidateConns(c.MaxConns)
}

func validateSchema(name string) error {
	const longest = 48
	if len(name) > longest || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" || name[0] <= '9' || strings.HasPrefix(name, "pg_") {
		return &backend.InvalidError{Field: "schema", Value: strconv.QuoteToGraphic(name), Bound: "1 to 48 characters of a-z 0-9 _, not beginning with a digit or pg_"}
	}
	return nil
}

// sql returns a query for the schema in use.
func (b *Backend) sql(query string) string {
	return strings.ReplaceAll(query, "@", b.schema+".")
}

// Capabilities returns the capabilities. A value that does not listen pushes nothing.
func (b *Backend) Capabilities() backend.Capabilities {
	return sqllease.Capabilities(backendName, !b.deaf)
}

// Close ends the goroutines and connections, and the calls in progress with ErrClosed. Leases
// stay in the database. A second Close does nothing.
func (b *Backend) Close() error {
	b.closing.Do(func() {
		b.leases.Close()
		b.conns.HangUp(hangUpTime)
		b.pool.Close()
	})
	return nil
}
