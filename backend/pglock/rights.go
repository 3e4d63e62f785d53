package pglock

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-io/holdfast/internal/connect"
)

// missingRights returns the rights that the role lacks, in the words of GRANT. Every role may read the
// catalog. $1 is the schema, $2 and $3 are what is needed of the objects in it.
const missingRights = `WITH s AS (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1),
	c AS (SELECT c.oid, c.relname, c.relkind FROM pg_catalog.pg_class c JOIN s ON c.relnamespace = s.oid)
	SELECT 'CREATE ON DATABASE ' || current_database() WHERE NOT EXISTS (SELECT FROM s) AND NOT has_database_privilege(current_database(), 'CREATE')
	UNION ALL SELECT 'CREATE ON SCHEMA ' || $1 FROM s WHERE NOT EXISTS (SELECT FROM c WHERE relname = 'meta') AND NOT has_schema_privilege(oid, 'CREATE')
	UNION ALL SELECT 'USAGE ON SCHEMA ' || $1 FROM s WHERE NOT has_schema_privilege(oid, 'USAGE')
	UNION ALL SELECT x.privilege || ' ON ' || CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE '' END || $1 || '.' || x.object
		FROM unnest($2::text[], $3::text[]) AS x (object, privilege) JOIN c ON c.relname = x.object
		WHERE NOT CASE c.relkind WHEN 'S' THEN has_sequence_privilege(c.oid, x.privilege) ELSE has_table_privilege(c.oid, x.privilege) END`

// rights are what a role needs. The pages in docs/backends list the same.
type rights struct {
	pool    *pgxpool.Pool
	backend string // its name, for errors
	schema  string
	needs   []need
}

type need struct{ object, privileges string }

const (
	reads  = "SELECT"
	writes = "SELECT INSERT UPDATE DELETE"
)

func (b *Backend) rights() rights {
	return rights{b.pool, backendName, strings.Trim(b.schema, `"`), []need{
		{"meta", "SELECT UPDATE"}, {"locks", writes}, {"sessions", writes}, {"leases", writes}, {"tombs", writes}, {"losses", writes},
	}}
}

func (b *Advisory) rights() rights {
	return rights{b.pool, advisoryName, b.name, []need{
		{"meta", reads}, {"tokens", "USAGE"}, {"epoch", "SELECT INSERT UPDATE"}, {"sessions", writes}, {"leases", writes}, {"waiters", "SELECT INSERT DELETE"},
	}}
}

// missing returns the rights that the role lacks.
func (r rights) missing(ctx context.Context) ([]string, error) {
	var objects, privileges []string
	for _, n := range r.needs {
		for p := range strings.FieldsSeq(n.privileges) {
			objects, privileges = append(objects, n.object), append(privileges, p)
		}
	}
	rows, err := r.pool.Query(ctx, missingRights, r.schema, objects, privileges)
	if err != nil {
		return nil, err //nolint:wrapcheck // see unavailable
	}
	return pgx.CollectRows(rows, pgx.RowTo[string]) //nolint:wrapcheck // see unavailable
}

// findings returns a finding for each right that the role lacks.
func (r rights) findings(ctx context.Context) ([]string, error) {
	all, err := r.missing(ctx)
	for i, right := range all {
		all[i] = connect.Lacks(r.backend, right, nil).Error()
	}
	return all, err
}

// lacking names the rights that are missing where the server refused a statement for want of one: its
// own error names a table and no right.
func (r rights) lacking(life context.Context, err error) error {
	var unconnected *pgconn.ConnectError
	if code(err) != codeNoRight || errors.As(err, &unconnected) {
		return err
	}
	const patience = time.Second
	ctx, cancel := context.WithTimeout(life, patience)
	defer cancel()
	right := "that the server names"
	if all, failed := r.missing(ctx); failed == nil && len(all) > 0 {
		right = strings.Join(all, ", ")
	}
	return connect.Lacks(r.backend, right, err)
}
