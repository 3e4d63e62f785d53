package pglock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
)

//go:embed schema.sql
var schema string

const schemaVersion = 1

const (
	readVersion = `SELECT version, current_setting('server_encoding') FROM @meta`
	// Numbers begin at the microseconds of the server's clock, so that they grow also when the
	// tables are dropped and created again.
	makeMeta = `INSERT INTO @meta (id, version, floor, watched)
		VALUES (1, $1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, '-infinity')`
	patiently  = `SELECT set_config('lock_timeout', '0', true)`
	oneAtATime = `SELECT pg_advisory_xact_lock(hashtextextended('holdfast schema', 0))`
)

// Migrate creates the schema and its tables where they do not exist. A role without that
// privilege needs another role to create them, and to grant it: USAGE of the schema, and SELECT,
// INSERT, UPDATE and DELETE of the tables in it. Migrate does nothing when they exist.
//
// Errors: *backend.UnavailableError, with ErrNoSchema where the role may not create them;
// ErrNewer and ErrEncoding, which are backend.ErrUnsupported; ErrClosed; ctx's cause.
func (b *Backend) Migrate(ctx context.Context) error {
	return b.leases.Setup(ctx, "migrate", func(ctx context.Context) error {
		err := b.check(ctx)
		if c := code(err); c == codeNoTable || c == codeNoSchema || errors.Is(err, pgx.ErrNoRows) {
			err = b.create(ctx)
			if c := code(err); err == nil || c == codeUnique || c == codeDuplicate { // another client was faster
				err = b.check(ctx)
			}
		}
		if code(err) == codeNoRight {
			err = fmt.Errorf("%w: %w", ErrNoSchema, err)
		}
		return err
	})
}

// check checks that the tables exist and can be used.
func (b *Backend) check(ctx context.Context) error {
	var version int
	var encoding string
	var err error
	for try := 1; ; try++ {
		err = b.pool.QueryRow(ctx, b.sql(readVersion)).Scan(&version, &encoding)
		if err == nil || errors.Is(err, pgx.ErrNoRows) || !b.leases.Again(err, try, true) {
			break
		}
	}
	switch {
	case err != nil:
		return err //nolint:wrapcheck // see unavailable
	case encoding != "UTF8":
		return fmt.Errorf("%s: %q: %w: %w", backendName, encoding, ErrEncoding, backend.ErrUnsupported)
	case version > schemaVersion:
		return fmt.Errorf("%s: version %d, this program knows %d: %w: %w", backendName, version, schemaVersion, ErrNewer, backend.ErrUnsupported)
	}
	return nil
}

// create creates the schema, in one transaction. Two processes never do so at the same time.
func (b *Backend) create(ctx context.Context) error {
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error { //nolint:wrapcheck // see unavailable
		for _, q := range []string{patiently, oneAtATime} {
			if _, err := tx.Exec(ctx, q); err != nil {
				return err //nolint:wrapcheck // see unavailable
			}
		}
		var space, tables bool
		err := tx.QueryRow(ctx, `SELECT to_regnamespace($1) IS NOT NULL, to_regclass($2) IS NOT NULL`, b.schema, b.schema+".meta").Scan(&space, &tables)
		if err != nil || tables {
			return err //nolint:wrapcheck // see unavailable
		}
		queries := []string{b.sql(schema)}
		if !space {
			queries = []string{`CREATE SCHEMA ` + b.schema, b.sql(schema)}
		}
		for _, q := range queries {
			if _, err := tx.Exec(ctx, q, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err //nolint:wrapcheck // see unavailable
			}
		}
		_, err = tx.Exec(ctx, b.sql(makeMeta), schemaVersion)
		return err //nolint:wrapcheck // see unavailable
	})
}
