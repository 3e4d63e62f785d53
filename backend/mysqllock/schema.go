package mysqllock

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-io/holdfast/backend"
)

//go:embed schema.sql
var schema string

const schemaVersion = 1

const (
	readVersion = `SELECT version, last_floor, $READONLY, @@global.innodb_flush_log_at_trx_commit FROM @meta WHERE id = 1`
	readGalera  = `SHOW GLOBAL VARIABLES LIKE 'wsrep_on'`
	// Numbers begin at the microseconds of the server's clock, so that they grow also when the
	// tables are dropped and created again.
	makeMeta = `INSERT INTO @meta (id, version, last_floor) VALUES (1, ?, $NOW) ON DUPLICATE KEY UPDATE id = id`
)

// Migrate creates the tables where they do not exist. A user without that privilege needs another
// user to create them, and to grant it: SELECT, INSERT, UPDATE and DELETE. Migrate does nothing
// when they exist.
//
// Errors: *backend.UnavailableError, with ErrNoSchema where the user may not create them, and
// with ErrReadOnly; ErrNewer, ErrGalera and ErrForgetful, which are backend.ErrUnsupported;
// ErrClosed; ctx's cause.
func (b *Backend) Migrate(ctx context.Context) error {
	return b.leases.Setup(ctx, "migrate", func(ctx context.Context) error {
		err := b.check(ctx)
		if code(err) == codeNoTable || errors.Is(err, sql.ErrNoRows) {
			if err = b.create(ctx); err == nil {
				err = b.check(ctx)
			}
		}
		if denied(err) {
			err = fmt.Errorf("%w: %w", ErrNoSchema, err)
		}
		return err
	})
}

// check checks that the tables exist and can be used.
func (b *Backend) check(ctx context.Context) error {
	var version, flush int
	var floor int64
	var readOnly bool
	unsupported := func(err error) error { return fmt.Errorf("%s: %w: %w", backendName, err, backend.ErrUnsupported) }
	for try := 1; ; try++ {
		// Before anything else: nothing is created on a node of a cluster.
		galera := ""
		q := new(batch)
		q.query(func(r *sql.Rows) error { return r.Scan(new(string), &galera) }, readGalera)
		err := q.run(ctx, b.db)
		if galera == "ON" {
			return unsupported(ErrGalera)
		}
		if err == nil {
			found := false
			q = new(batch)
			q.query(func(r *sql.Rows) error { found = true; return r.Scan(&version, &floor, &readOnly, &flush) }, b.sql(readVersion))
			if err = q.run(ctx, b.db); err == nil && found {
				break
			}
			if err == nil {
				err = sql.ErrNoRows
			}
		}
		if errors.Is(err, sql.ErrNoRows) || !b.leases.Again(err, try, true) {
			return err
		}
	}
	b.floor.Store(floor)
	switch {
	case flush == 0:
		return unsupported(ErrForgetful)
	case readOnly:
		return ErrReadOnly
	case version > schemaVersion:
		return unsupported(fmt.Errorf("version %d, this program knows %d: %w", version, schemaVersion, ErrNewer))
	}
	return nil
}

// create creates the tables. Several clients may do so concurrently. The row of meta, which comes
// last, means that everything exists.
func (b *Backend) create(ctx context.Context) error {
	for try := 1; ; try++ {
		q := new(batch)
		for statement := range strings.SplitSeq(schema, ";\n") {
			if strings.Contains(statement, "CREATE") {
				q.exec(b.sql(statement))
			}
		}
		q.exec(b.sql(makeMeta), schemaVersion)
		if err := q.run(ctx, b.db); err == nil || !b.leases.Again(err, try, true) {
			return err
		}
	}
}
