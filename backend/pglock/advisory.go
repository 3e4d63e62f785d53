package pglock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
	"github.com/holdfast-io/holdfast/internal/connlease"
	"github.com/holdfast-io/holdfast/internal/retry"
)

const (
	advisoryName   = "postgres+advisory"
	advisorySchema = "holdfast_advisory"
	advisoryConns  = 4
)

// AdvisoryConfig configures an Advisory backend.
type AdvisoryConfig struct {
	// Conn is the connection configuration, as pgx.ParseConfig returns it. It is copied.
	// Required.
	Conn *pgx.ConnConfig
	// BeforeConnect and AfterConnect: see Config. Optional.
	BeforeConnect func(context.Context, *pgx.ConnConfig) error
	AfterConnect  func(context.Context, *pgx.Conn) error
	// Schema is the schema of the tables, and a part of the key of every lock: values with
	// different schemas are independent of each other. 1 to 48 characters of a-z 0-9 _, not
	// beginning with a digit. Default: "holdfast_advisory". Optional.
	Schema string
	// Logger receives the errors that no caller gets. Default: slog.Default(). Optional.
	Logger *slog.Logger
}

// Advisory keeps locks as session advisory locks of a PostgreSQL database (14 or newer). It
// implements backend.Backend. Its methods are safe for concurrent use. Use OpenAdvisory or
// NewAdvisory to make one.
//
// A session is a connection, which has all its locks. The server frees them when the connection
// ends, however it ends. It ends the connection itself when nothing arrived on it for the TTL
// (idle_session_timeout, and TCP's own where it waits for the rest of a request). The holder
// learns of the end of its connection immediately.
//
// There are no timed leases, no permits and no events, and waiters are served in no promised order. A lock is only ever
// tried, never waited for in the server, so that one connection is enough for all of them. A refused waiter is put into a table, and the
// client that releases the lock notifies the first one there; a client that arrives at that
// moment may be faster. A waiter tries once a second in any case, because there is no
// notification for a holder that died.
//
// The key of a lock is 64 bits of the SHA-256 of the schema and its name. Two names with the same
// key exclude each other in different sessions, and do no other harm. Among a million names the
// probability of two such names is 1 in 37 million.
//
// Tokens come from a sequence, above the microseconds of the server's clock when the first of the
// present connections was made. So they grow also when a crash or a fail-over loses the last numbers
// of the sequence, and when an old copy is restored.
//
// Break asks the holders to release the lock. A holder that does not within five seconds loses its connection, with
// all its locks (pg_terminate_backend, which a role may use on its own connections).
//
// OpenSession also returns ErrPooler, ErrOld, ErrNewer and ErrEncoding, which are ErrUnsupported.
type Advisory struct {
	verbs // of leases

	conf    *pgx.ConnConfig // of a connection with locks
	program connHooks
	pool    *pgxpool.Pool // for everything else
	conns   connect.Set
	log     *slog.Logger
	name    string            // of the schema
	schema  string            // the same, quoted
	words   *strings.Replacer // @ and $HELD in statements
	key     func(name string) int64

	leases   *connlease.Leases
	notifier notifier
}

var _ backend.Backend = (*Advisory)(nil)

// OpenAdvisory returns a backend for a URL, postgres+advisory://user:password@host/database, with
// the parameters of Open except listen and max_conns. The URL's settings override cfg. Nothing is sent
// until the first call.
//
// Errors: *backend.InvalidError for a bad URL, which includes an unknown parameter. It never
// contains the password.
func OpenAdvisory(ctx context.Context, rawURL string, cfg AdvisoryConfig) (*Advisory, error) {
	if err := connect.Context(ctx); err != nil {
		return nil, err
	}
	u, err := parseURL(rawURL, Config{Schema: cfg.Schema, BeforeConnect: cfg.BeforeConnect}, []string{"schema"}, advisoryName)
	if err != nil {
		return nil, err
	}
	return NewAdvisory(AdvisoryConfig{Conn: u.Conn, BeforeConnect: u.BeforeConnect, AfterConnect: cfg.AfterConnect, Schema: u.Schema, Logger: cfg.Logger})
}

// NewAdvisory returns a backend on a database. It sends nothing yet. The first call creates the
// tables, where they do not exist and the role has the privilege.
//
// Errors: *backend.InvalidError for a field that is out of bounds.
func NewAdvisory(cfg AdvisoryConfig) (*Advisory, error) {
	same := Config{Conn: cfg.Conn, Schema: cmp.Or(cfg.Schema, advisorySchema), Logger: cfg.Logger}
	if err := same.withDefaults(); err != nil {
		return nil, err
	}
	quoted := pgx.Identifier{same.Schema}.Sanitize()
	b := &Advisory{
		program: connHooks{cfg.BeforeConnect, cfg.AfterConnect, settings}, log: same.Logger, name: same.Schema, schema: quoted,
		words: strings.NewReplacer("@", quoted+".", "$HELD", heldLocks), notifier: notifier{log: same.Logger, name: advisoryName},
	}
	b.key = b.hashed
	b.leases = connlease.New(connlease.Config{Store: advisoryStore{b}, Caps: b.Capabilities(), Rest: retry.Rest{Least: time.Second, Longest: time.Second}})
	b.verbs = b.leases
	b.conf = b.configure(cfg.Conn)
	pc, err := pgxpool.ParseConfig("")
	if err == nil {
		pc.ConnConfig, pc.MaxConns, pc.MinConns = b.conf, advisoryConns, 0
		pc.MaxConnIdleTime, pc.PingTimeout = dialTime, dialTime
		pc.BeforeConnect, pc.AfterConnect = b.program.before, b.program.then(noLimit)
		b.pool, err = pgxpool.NewWithConfig(b.leases.Life(), pc)
	}
	if err != nil {
		b.leases.Close()
		return nil, unavailableAt(advisoryName, "open", false, err)
	}
	return b, nil
}

// hashed returns the key of a lock.
func (b *Advisory) hashed(name string) int64 {
	sum := sha256.Sum256([]byte(b.name + "\x00" + name))
	return int64(binary.BigEndian.Uint64(sum[:])) //nolint:gosec // all 64 bits count
}

// sql returns a query for the schema in use.
func (b *Advisory) sql(query string) string { return b.words.Replace(query) }

// Capabilities returns the capabilities of advisory locks.
func (b *Advisory) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Name: advisoryName, Sessions: true, Bound: true, Tied: true, Shared: true, Push: true, LossPush: true, TokenKind: "clock",
		MinTTL: time.Second, MaxTTL: 24 * time.Hour, ExpiryLag: 2 * time.Second,
	}
}

// Close ends the sessions that were opened here, with their locks, the connections and the
// goroutines, and the calls in progress with ErrClosed. A second Close does nothing.
func (b *Advisory) Close() error {
	b.leases.Close()
	b.conns.HangUp(hangUpTime)
	b.pool.Close()
	return nil
}
