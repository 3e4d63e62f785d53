package pglock

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connlease"
	"github.com/holdfast-io/holdfast/internal/conns"
)

const (
	advisoryName   = "postgres+advisory"
	advisorySchema = "holdfast_advisory"
	advisoryConns  = 4
)

// AdvisoryConfig says which database to use for advisory locks, and how.
type AdvisoryConfig struct {
	// Conn is how to connect, as pgx.ParseConfig makes it. It is copied. Required.
	Conn *pgx.ConnConfig
	// Schema is the schema of the tables, and a part of what the locks are called: values
	// with different ones have nothing to do with each other. 1 to 48 characters of a-z 0-9
	// _, not beginning with a digit. Default: "holdfast_advisory". Optional.
	Schema string
	// Logger is told what is nobody's error. Default: none. Optional.
	Logger *slog.Logger
}

// Advisory keeps locks as session advisory locks of a PostgreSQL database (14 or newer). It
// implements backend.Backend; its methods may be called at once from many goroutines. Make
// it with OpenAdvisory or NewAdvisory.
//
// A session is a connection, and all its locks are on that. The server frees them when the
// connection ends, however it ends, and ends it itself when nothing came over it for the TTL
// (idle_session_timeout, and TCP's own where it waits for the rest of a request). The holder
// hears of the end of its connection at once. There are no timed leases, no permits, no
// re-entry across processes and no events, and waiters are served in no promised order: a lock
// is only ever tried, never waited for in the server, so that one connection is enough for all
// of them. Who was refused is put into a table, and whoever gives the lock back notifies the
// first there; who comes at that moment may be faster. A waiter tries once a second in any
// case: nobody notifies for a holder that died.
//
// The key of a lock is 64 bits of the SHA-256 of the schema and its name. Two names with the
// same key exclude each other in different sessions, and do no other harm; among a million
// names there are such two with a probability of 1 in 37 million.
//
// Tokens come from a sequence, above the microseconds of the server's clock of when the server
// was first used since it lost anything: they grow also when a crash or a fail-over loses the
// last numbers of the sequence.
type Advisory struct {
	conf   *pgx.ConnConfig // of a connection with locks
	pool   *pgxpool.Pool   // for everything else
	conns  conns.Set
	log    *slog.Logger
	name   string // of the schema
	quoted *strings.Replacer
	key    func(name string) int64

	leases  *connlease.Leases
	closing sync.Once
}

var _ backend.Backend = (*Advisory)(nil)

// OpenAdvisory makes a backend from a URL, postgres+advisory://user:password@host/database,
// with the parameters of Open but for listen and max_conns. Nothing is sent until the first
// call.
//
// Errors: *backend.InvalidError for a bad URL, which an unknown parameter makes it; the
// password is never told.
func OpenAdvisory(ctx context.Context, rawURL string, logger *slog.Logger) (*Advisory, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	cfg, err := parseURL(rawURL, []string{"schema"}, advisoryName)
	if err != nil {
		return nil, err
	}
	return NewAdvisory(AdvisoryConfig{Conn: cfg.Conn, Schema: cfg.Schema, Logger: logger})
}

// NewAdvisory makes a backend on a database. It sends nothing yet. The tables are made by
// the first call, where they are not there and the role may.
//
// Errors: *backend.InvalidError for a field that is out of bounds.
func NewAdvisory(cfg AdvisoryConfig) (*Advisory, error) {
	if cfg.Conn == nil {
		return nil, &backend.InvalidError{Field: "conn", Value: "nil", Bound: "given"}
	}
	if cfg.Schema == "" {
		cfg.Schema = advisorySchema
	}
	if err := validateSchema(cfg.Schema); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Advisory{
		log: cfg.Logger, name: cfg.Schema,
		quoted: strings.NewReplacer("@", pgx.Identifier{cfg.Schema}.Sanitize()+".", "$HELD", heldLocks),
	}
	b.key = b.hashed
	b.leases = connlease.New(connlease.Config{Store: advisoryStore{b}, Caps: b.Capabilities(), Wakes: true, Pause: advisoryPause})
	b.conf = b.configure(cfg.Conn)
	pc, err := pgxpool.ParseConfig("")
	if err == nil {
		pc.ConnConfig, pc.MaxConns, pc.MinConns = b.conf, advisoryConns, 0
		pc.MaxConnIdleTime, pc.PingTimeout = idleLimit, dialTime
		b.pool, err = pgxpool.NewWithConfig(b.leases.Life(), pc)
	}
	if err != nil {
		b.leases.Close()
		return nil, unavailableAt(advisoryName, "open", false, err)
	}
	return b, nil
}

// advisoryPause is how long a session with waiters rests when nobody wakes it: nobody
// notifies for a holder that died.
func advisoryPause(time.Duration) time.Duration {
	const least, jitter = 750 * time.Millisecond, 500 * time.Millisecond
	return least + rand.N(jitter)
}

// hashed is the key of a lock.
func (b *Advisory) hashed(name string) int64 {
	sum := sha256.Sum256([]byte(b.name + "\x00" + name))
	return int64(binary.BigEndian.Uint64(sum[:])) //nolint:gosec // all 64 bits count
}

// sql is a query for the schema in use.
func (b *Advisory) sql(query string) string { return b.quoted.Replace(query) }

// Capabilities says what can be done with advisory locks.
func (b *Advisory) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Name: advisoryName, Sessions: true, Bound: true, Tied: true, Shared: true, Push: true, LossPush: true, TokenKind: "counter",
		MinTTL: time.Second, MaxTTL: 24 * time.Hour, ExpiryLag: 2 * time.Second,
	}
}

// Close ends the sessions that were opened here, with their locks, the connections and the
// goroutines, and the calls under way with ErrClosed. Closing again does nothing.
func (b *Advisory) Close() error {
	b.closing.Do(func() {
		b.leases.Close()
		b.conns.HangUp(hangUpTime)
		b.pool.Close()
	})
	return nil
}

// OpenSession makes a session, with a connection of its own, or confirms it. Errors:
// *InvalidError, also for a TTL that differs from the one it was opened with; ErrSessionLost;
// ErrPooler, ErrOld, ErrNewer and ErrEncoding, which are ErrUnsupported; *UnavailableError;
// ErrClosed; ctx's cause.
func (b *Advisory) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	return b.leases.OpenSession(ctx, req)
}

// EndSession gives back all that lives with the session, and closes its connection. Errors:
// *InvalidError, *UnavailableError, ErrClosed, ctx's cause.
func (b *Advisory) EndSession(ctx context.Context, id backend.SessionID) error {
	return b.leases.EndSession(ctx, id)
}

// Acquire takes the lock, or waits for it when req.Wait is set. Errors: *InvalidError,
// *HeldError, ErrLost, ErrSessionLost, ErrUnsupported, *UnavailableError, ErrClosed, ctx's
// cause.
func (b *Advisory) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	return b.leases.Acquire(ctx, req)
}

// Renew extends a session. Errors: *InvalidError, ErrUnsupported, *UnavailableError,
// ErrClosed, ctx's cause. What became of it is in the result.
func (b *Advisory) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	return b.leases.Renew(ctx, req)
}

// Release gives a lease back. Errors: ErrLost where there is no such lease, unless
// req.Abandon is set; *InvalidError; *UnavailableError; ErrClosed; ctx's cause.
func (b *Advisory) Release(ctx context.Context, req backend.ReleaseRequest) error {
	return b.leases.Release(ctx, req)
}

// Inspect tells who holds the lock and who waits. Errors: *InvalidError,
// *UnavailableError, ErrClosed, ctx's cause.
func (b *Advisory) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	return b.leases.Inspect(ctx, name)
}

// List tells the locks that are held, by name. Errors: *InvalidError, *UnavailableError,
// ErrClosed, ctx's cause.
func (b *Advisory) List(ctx context.Context, req backend.ListRequest) (backend.ListPage, error) {
	return b.leases.List(ctx, req)
}

// Break takes the lock from all its holders, who are asked to give it back. One that does
// not within five seconds loses its connection, with all its locks (pg_terminate_backend,
// which the role may do to its own). Errors: *InvalidError, *UnavailableError, ErrClosed,
// ctx's cause.
func (b *Advisory) Break(ctx context.Context, req backend.BreakRequest) (backend.BreakResult, error) {
	return b.leases.Break(ctx, req)
}

// Watch is ErrUnsupported: there are no events.
func (b *Advisory) Watch(ctx context.Context, req backend.WatchRequest, _ func(backend.Event)) error {
	return b.leases.Watch(ctx, req)
}
