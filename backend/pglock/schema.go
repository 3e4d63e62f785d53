package pglock

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-io/holdfast/backend"
)

//go:embed schema.sql
var schema string

// schemaVersion and advisoryVersion are those that schema.sql and advisory.sql write.
const schemaVersion, advisoryVersion = 3, 1

const (
	readVersion = `SELECT version, current_setting('server_encoding') FROM @meta`
	oneAtATime  = `SELECT pg_advisory_xact_lock(hashtextextended('holdfast schema', 0))`
)

// tables are the schema of a backend, and the tables in it.
type tables struct {
	pool    *pgxpool.Pool
	backend string // its name, for errors
	version int
	schema  string // its name, quoted
	create  string // the statements that create the tables, the row of meta last
	sql     func(query string) string
}

// Schema returns the statements that create the tables in a schema, "" for the default, for a program whose
// role may not create any. Run them once, as one script. They fail if the tables exist. The role of the
// program then needs USAGE of the schema, and SELECT, INSERT, UPDATE and DELETE of the tables in it.
//
// The error is *backend.InvalidError for a name that Config does not accept.
func Schema(name string) (string, error) {
	name = cmp.Or(name, defaultSchema)
	if err := validateSchema(name); err != nil {
		return "", err
	}
	quoted := pgx.Identifier{name}.Sanitize()
	return "CREATE SCHEMA IF NOT EXISTS " + quoted + ";\n" + strings.ReplaceAll(schema, "@", quoted+"."), nil
}

// Migrate creates the schema and its tables where they do not exist. A role without that
// privilege needs another role to create them, and to grant it what docs/backends/postgres.md lists
// under "Least rights". Migrate does nothing when they exist.
//
// Errors: *backend.UnavailableError, with ErrNoSchema where the role may not create them, and with a
// *backend.RefusedError where it lacks another right;
// ErrNewer, ErrOlder and ErrEncoding, which are backend.ErrUnsupported; ErrClosed; ctx's cause.
func (b *Backend) Migrate(ctx context.Context) error {
	t := tables{pool: b.pool, backend: backendName, version: schemaVersion, schema: b.schema, create: schema, sql: b.sql}
	return b.leases.Setup(ctx, "migrate", t.ensure)
}

// ensure makes sure that the tables exist and can be used.
func (t *tables) ensure(ctx context.Context) error {
	err := t.check(ctx)
	if c := code(err); c == codeNoTable || c == codeNoSchema || errors.Is(err, pgx.ErrNoRows) {
		if err = t.make(ctx); code(err) == codeNoRight {
			return fmt.Errorf("%w: %w", ErrNoSchema, err)
		}
		if c := code(err); err == nil || c == codeUnique || c == codeDuplicate { // another client was faster
			err = t.check(ctx)
		}
	}
	return err
}

// check checks that the tables exist and can be used.
func (t *tables) check(ctx context.Context) error {
	var version int
	var encoding string
	err := t.pool.QueryRow(ctx, t.sql(readVersion)).Scan(&version, &encoding)
	switch {
	case err != nil:
		return err //nolint:wrapcheck // see unavailable
	case encoding != "UTF8":
		return fmt.Errorf("%s: %q: %w: %w", t.backend, encoding, ErrEncoding, backend.ErrUnsupported)
	case version > t.version:
		return fmt.Errorf("%s: version %d, this program knows %d: %w: %w", t.backend, version, t.version, ErrNewer, backend.ErrUnsupported)
	case version < t.version:
		return fmt.Errorf("%s: version %d, this program needs %d: %w: %w", t.backend, version, t.version, ErrOlder, backend.ErrUnsupported)
	}
	return nil
}

// make creates the schema, in one transaction. Two processes never do so at the same time.
func (t *tables) make(ctx context.Context) error {
	return pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error { //nolint:wrapcheck // see unavailable
		if _, err := tx.Exec(ctx, settings, idleLimit, noLimit, true); err != nil {
			return err //nolint:wrapcheck // see unavailable
		}
		if _, err := tx.Exec(ctx, oneAtATime); err != nil {
			return err //nolint:wrapcheck // see unavailable
		}
		var space, tables bool
		err := tx.QueryRow(ctx, `SELECT to_regnamespace($1) IS NOT NULL, to_regclass($2) IS NOT NULL`, t.schema, t.schema+".meta").Scan(&space, &tables)
		if err != nil || tables {
			return err //nolint:wrapcheck // see unavailable
		}
		queries := []string{t.sql(t.create)}
		if !space {
			queries = []string{`CREATE SCHEMA ` + t.schema, t.sql(t.create)}
		}
		for _, q := range queries {
			if _, err := tx.Exec(ctx, q, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err //nolint:wrapcheck // see unavailable
			}
		}
		return nil
	})
}
