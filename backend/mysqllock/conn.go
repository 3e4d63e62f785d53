package mysqllock

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

const (
	dialTime = 5 * time.Second
	// idleTime is how long an idle connection is kept. The server ends a connection that sends
	// nothing for twice as long, with a transaction open or not: a process that sleeps in the
	// middle of one must not keep other clients from the locks.
	idleTime = 3 * time.Second
	// hangUpTime is how long a connection may take to be closed in an orderly way.
	hangUpTime = 200 * time.Millisecond
)

// settings are those of a connection. What the server, its init_connect, the user or a pooler has set
// before must not change what a statement returns. The character set comes first: in some others the
// backslash of an escaped quotation mark is the second byte of a character. A time-out of the server would
// only come on top of those here. The lock wait is in seconds, and 1 is the least. The time zone is that of
// SYSDATE. In the comments are the variables that only one of the two servers has.
const settings = `SET NAMES utf8mb4 COLLATE utf8mb4_bin, autocommit = 1, completion_type = 0, time_zone = '+00:00',
		sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_select_limit = 18446744073709551615,
		max_join_size = 18446744073709551615, sql_big_selects = 1, sql_safe_updates = 0, max_sort_length = 1024,
		unique_checks = 1, foreign_key_checks = 1, innodb_lock_wait_timeout = 1, wait_timeout = 6
		/*M!100600 , max_statement_time = 0 */ /*!80000 , max_execution_time = 0 */;
	SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
	USE `

// connector establishes connections as this package needs them.
type connector struct {
	conf *mysql.Config
	life context.Context //nolint:containedctx // Close ends it
}

// configure returns the connector of this value.
func configure(from *mysql.Config, life context.Context, open *connect.Set) (driver.Connector, error) { //nolint:revive // the context is not that of the call
	c := from.Clone()
	if c.Timeout == 0 {
		c.Timeout = dialTime
	}
	// Statements are sent together, with their arguments in them.
	c.MultiStatements, c.InterpolateParams, c.ParseTime = true, true, false
	c.Collation, c.Logger = "utf8mb4_bin", new(mysql.NopLogger)
	c.CheckConnLiveness = true
	c.ClientFoundRows = false // ROW_COUNT() has to tell a row that was there from one that was made
	// It would cut off the server's report that it is a replica, and retry elsewhere.
	c.RejectReadOnly = false
	c.DialFunc = open.Watch(c.DialFunc)
	if _, err := mysql.NewConnector(c); err != nil { // to report what is wrong before the first connection
		return nil, fmt.Errorf("connector: %w", err)
	}
	return connector{c, life}, nil
}

// Driver returns the driver of the connections.
func (connector) Driver() driver.Driver { return mysql.MySQLDriver{} }

// Connect establishes a connection and sets it up. Closing the backend interrupts it.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, leave := backend.Within(ctx, c.life)
	defer leave()
	// With tls=preferred the driver notes in the configuration that a server has no TLS. Its
	// connections share the configuration, so each of ours has one of its own.
	own, err := mysql.NewConnector(c.conf)
	if err != nil {
		return nil, fmt.Errorf("connector: %w", err)
	}
	conn, err := own.Connect(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // see Unavailable
	}
	execer, ok := conn.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	if _, err := execer.ExecContext(ctx, settings+"`"+strings.ReplaceAll(c.conf.DBName, "`", "``")+"`", nil); err != nil {
		_ = conn.Close()
		return nil, err //nolint:wrapcheck // see Unavailable
	}
	return conn, nil
}
