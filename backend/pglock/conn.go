package pglock

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

const (
	dialTime = 5 * time.Second
	// hangUpTime is how long Close waits for connections to be closed in an orderly way.
	hangUpTime = 200 * time.Millisecond
)

// configure returns the configuration of this value's connections.
func (b *Backend) configure(from *pgx.ConnConfig) *pgx.ConnConfig {
	c := primary(from, b.life(), &b.conns)
	if !b.deaf { // a pooler refuses it, unless it is told to ignore it: see ErrPooler
		c.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	}
	if b.deaf { // the next statement may run on another connection
		c.DefaultQueryExecMode = pgx.QueryExecModeExec
		c.StatementCacheCapacity, c.DescriptionCacheCapacity = 0, 0
	}
	notice := c.OnNotice
	c.OnNotice = func(conn *pgconn.PgConn, n *pgconn.Notice) {
		if n.Routine == notWaited {
			conn.CustomData()[notWaited] = true // the answer may have been read together with the warning
			_ = conn.Conn().Close()
		}
		if notice != nil {
			notice(conn, n)
		}
	}
	return c
}

// notWaited is the routine in which the server warns, in any language, that a commit succeeds
// without the standby because its wait was cancelled, as by statement_timeout. Nothing may rest
// on such an answer. The connection is closed, so that the outcome of the commit is unknown, and
// a retry waits for the standby.
const notWaited = "SyncRepWaitForLSN"

// errNotWaited is for such a commit whose answer was read all the same.
var errNotWaited = errors.New("the commit did not wait for the standby: the wait was cancelled")

// send sends a batch that commits something.
func send(ctx context.Context, conn *pgxpool.Conn, q *pgx.Batch) error {
	err := conn.SendBatch(ctx, q).Close()
	if err == nil && conn.Conn().PgConn().CustomData()[notWaited] != nil {
		_ = conn.Conn().Close(ctx) // so that the pool does not keep it
		err = errNotWaited
	}
	return err
}

func (b *Backend) poolConfig(most int) (*pgxpool.Config, error) {
	pc, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, err //nolint:wrapcheck // see unavailable
	}
	pc.ConnConfig = b.conf
	pc.MaxConns, pc.MinConns = int32(most), 0 //nolint:gosec // at most 1000
	pc.BeforeConnect, pc.AfterConnect = b.program.before, b.program.then(lockLimit)
	pc.MaxConnIdleTime = time.Minute
	// A connection that was idle for a second is pinged before its use: what is sent over a
	// broken one has an unknown outcome.
	pc.PingTimeout = dialTime
	return pc, nil
}

// primary returns a copy of the configuration for connections to the primary, which Close ends, whatever
// the library still does with them.
func primary(from *pgx.ConnConfig, life context.Context, open *connect.Set) *pgx.ConnConfig { //nolint:revive // the context is not that of a call
	c := from.Copy()
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = dialTime
	}
	if c.ValidateConnect == nil { // a standby keeps no leases, and has locks of its own
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "holdfast"
	}
	dial := open.Watch(c.DialFunc)
	c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, leave := backend.Within(ctx, life)
		defer leave()
		return dial(ctx, network, addr)
	}
	return c
}
