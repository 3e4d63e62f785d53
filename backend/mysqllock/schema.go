package mysqllock

import (
	"cmp"
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
)

//go:embed schema.sql
var schema string

const schemaVersion = 3

const (
	readGalera  = `SHOW GLOBAL VARIABLES LIKE 'wsrep_on'`
	readVersion = `SELECT version, $READONLY, @@global.innodb_flush_log_at_trx_commit, last_floor FROM @meta WHERE id = 1`
	makeMeta    = `INSERT INTO @meta (id, version, last_floor) VALUES (1, ?, 0) ON DUPLICATE KEY UPDATE id = id`
)

// tables are the tables of a backend, and the server that has them.
type tables struct {
	db      *sql.DB
	backend string // its name, for errors
	version int
	read    string // the query for the version, whether the server is read-only, its flushing of logs, and more
	more    []any  // where the rest of its columns goes
	meta    string // the statement that writes the row of meta
	sql     func(query string) string
	create  string // the statements that create the tables
}

// Schema returns the statements that create the tables with a prefix, "" for the default, for a program
// whose user may not create any. Run them in its database, as one script. They do nothing if the tables
// exist. The user of the program then needs SELECT, INSERT, UPDATE and DELETE of them.
//
// The error is *backend.InvalidError for a prefix that Config does not accept.
func Schema(prefix string) (string, error) {
	prefix = cmp.Or(prefix, defaultPrefix)
	if err := validatePrefix(prefix); err != nil {
		return "", err
	}
	w := words(prefix)
	meta := strings.Replace(w.Replace(makeMeta), "?", strconv.Itoa(schemaVersion), 1)
	return "SET time_zone = '+00:00';\n" + w.Replace(schema) + meta + ";\n", nil
}

// Migrate creates the tables where they do not exist. A user without that privilege needs another
// user to create them, and to grant it what docs/backends/mysql.md lists under "Least rights". Migrate
// does nothing when they exist.
//
// Errors: *backend.UnavailableError, with ErrNoSchema where the user may not create them, with a
// *backend.RefusedError where it lacks another right, and with ErrReadOnly; ErrNewer, ErrOlder, ErrGalera and ErrForgetful, which are
// backend.ErrUnsupported; ErrClosed; ctx's cause.
func (b *Backend) Migrate(ctx context.Context) error {
	var floor int64
	t := tables{
		db: b.db, backend: backendName, version: schemaVersion, read: readVersion, more: []any{&floor}, meta: makeMeta,
		sql: b.sql, create: schema,
	}
	return b.leases.Setup(ctx, "migrate", func(ctx context.Context) error {
		err := t.ensure(ctx)
		if err == nil {
			b.floor.Store(floor)
		}
		return err
	})
}

// ensure makes sure that the tables exist, and that the server can grant locks.
func (t *tables) ensure(ctx context.Context) error {
	err := t.check(ctx)
	if code(err) == codeNoTable || errors.Is(err, sql.ErrNoRows) {
		switch err = t.make(ctx); {
		case err == nil:
			err = t.check(ctx)
		case denied(err):
			err = fmt.Errorf("%w: %w", ErrNoSchema, err)
		}
	}
	return err
}

// check checks that the server can grant locks, and that the tables can be used. It first reads whether the
// server is a node of a cluster: nothing is created there.
func (t *tables) check(ctx context.Context) error {
	var galera string
	var version, flush int
	var found, readOnly bool
	q := new(batch)
	q.query(func(r *sql.Rows) error { return r.Scan(new(string), &galera) }, readGalera)
	q.query(func(r *sql.Rows) error {
		found = true
		return r.Scan(append([]any{&version, &readOnly, &flush}, t.more...)...)
	}, t.sql(t.read))
	err := q.run(ctx, t.db)
	unsupported := func(err error) error { return fmt.Errorf("%s: %w: %w", t.backend, err, backend.ErrUnsupported) }
	switch {
	case galera == "ON":
		return unsupported(ErrGalera)
	case err != nil:
		return err
	case !found:
		return sql.ErrNoRows
	case flush == 0:
		return unsupported(ErrForgetful)
	case readOnly:
		return ErrReadOnly
	case version > t.version:
		return unsupported(fmt.Errorf("version %d, this program knows %d: %w", version, t.version, ErrNewer))
	case version < t.version:
		return unsupported(fmt.Errorf("version %d, this program needs %d: %w", version, t.version, ErrOlder))
	}
	return nil
}

// make creates the tables. Several clients may do so concurrently. The row of meta, which comes
// last, means that everything exists.
func (t *tables) make(ctx context.Context) error {
	q := new(batch)
	for statement := range strings.SplitSeq(t.create, ";\n") {
		if strings.Contains(statement, "CREATE") {
			q.exec(t.sql(statement))
		}
	}
	q.exec(t.sql(t.meta), t.version)
	return q.run(ctx, t.db)
}
