package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// rights are what a user needs. The pages in docs/backends list the same.
type rights struct {
	db      *sql.DB
	backend string // its name, for errors
	name    string // of the database
	sql     func(query string) string
	needs   []need
}

type need struct{ table, column, privileges string }

const writes = "SELECT INSERT UPDATE DELETE"

func (b *Backend) rights() rights {
	return rights{b.db, backendName, b.name, b.sql, []need{
		{"meta", "version", "SELECT UPDATE"},
		{"locks", "last", writes},
		{"sessions", "ttl", writes},
		{"leases", "ttl", writes},
		{"tombs", "expires", writes},
		{"losses", "expires", writes},
	}}
}

func (b *UserLocks) rights() rights {
	return rights{b.db, getlockName, b.conf.DBName, b.sql, []need{
		{"meta", "version", "SELECT"}, {"sessions", "expires", writes}, {"leases", "since", writes},
	}}
}

// probe returns a statement that the server refuses without the privilege, and that changes nothing:
// EXPLAIN needs the privileges of what it explains.
func (n need) probe(privilege string) string {
	switch privilege {
	case "INSERT":
		return "EXPLAIN INSERT INTO @" + n.table + " (" + n.column + ") VALUES (0)"
	case "UPDATE":
		return "EXPLAIN UPDATE @" + n.table + " SET " + n.column + " = 0"
	case "DELETE":
		return "EXPLAIN DELETE FROM @" + n.table
	default:
		return "EXPLAIN SELECT 1 FROM @" + n.table
	}
}

// makes is refused without the right to create a table, and otherwise because two columns have one name.
const makes = "CREATE TABLE @meta (id INTEGER, id INTEGER)"

// missing returns the rights that the user lacks, in the words of GRANT.
func (r rights) missing(ctx context.Context) ([]string, error) {
	var out []string
	absent := false
	for _, n := range r.needs {
		for p := range strings.FieldsSeq(n.privileges) {
			err := r.try(ctx, n.probe(p))
			switch {
			case code(err) == codeDenied:
				out = append(out, p+" ON "+r.name+"."+strings.Trim(r.sql("@"+n.table), "`"))
			case code(err) == codeNoTable:
				absent = true
			case code(err) == 0 && err != nil:
				return nil, err
			}
		}
	}
	if absent && code(r.try(ctx, makes)) == codeDenied {
		out = append(out, "CREATE ON "+r.name+".*")
	}
	return out, nil
}

func (r rights) try(ctx context.Context, statement string) error {
	rows, err := r.db.QueryContext(ctx, r.sql(statement))
	if err != nil {
		return err //nolint:wrapcheck // see unavailable
	}
	defer rows.Close() //nolint:errcheck // nothing is read
	return rows.Err()
}

// findings returns a finding for each right that the user lacks.
func (r rights) findings(ctx context.Context) ([]string, error) {
	all, err := r.missing(ctx)
	for i, right := range all {
		all[i] = connect.Lacks(r.backend, right, nil).Error()
	}
	return all, err
}

// lacking names the rights that are missing where the server refused a statement for want of one.
func (r rights) lacking(life context.Context, err error) error {
	server, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok || !denied(err) || errors.Is(err, backend.ErrRefused) {
		return err
	}
	const patience = time.Second
	ctx, cancel := context.WithTimeout(life, patience)
	defer cancel()
	right := "that the server names"
	switch all, failed := r.missing(ctx); {
	case server.Number == codeNotOwner:
		right = "to end the connection of a holder that does not answer (connect all clients as one user)"
	case failed == nil && len(all) > 0:
		right = strings.Join(all, ", ")
	case server.Number == codeDeniedDB:
		right = "to use the database " + r.name
	}
	return connect.Lacks(r.backend, right, err)
}
