package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/holdfast-io/holdfast/internal/sqllease"
)

// batch is statements that are sent together. The server executes them in order, up to the first
// that fails. The client library writes the arguments into the text: texts as binary literals, so
// that no character set or collation matters.
type batch struct {
	text  strings.Builder
	args  []any
	scans []func(*sql.Rows) error // one for each statement that has rows
}

// exec adds a statement without rows.
func (q *batch) exec(statement string, args ...any) {
	if q.text.Len() > 0 {
		q.text.WriteString(";\n")
	}
	q.text.WriteString(statement)
	for _, a := range args {
		if s, ok := a.(string); ok {
			a = []byte(s)
		}
		q.args = append(q.args, a)
	}
}

// part is a piece of a statement, and its arguments.
type part struct {
	text string
	args []any
}

// fill adds a statement, and replaces the names in braces by the parts.
func (q *batch) fill(statement string, parts map[string]part) {
	var text strings.Builder
	var args []any
	for {
		before, rest, found := strings.Cut(statement, "{")
		text.WriteString(before)
		if !found {
			break
		}
		name, after, _ := strings.Cut(rest, "}")
		text.WriteString(parts[name].text)
		args = append(args, parts[name].args...)
		statement = after
	}
	q.exec(text.String(), args...)
}

// query adds a statement with rows. scan is called for each of them.
func (q *batch) query(scan func(*sql.Rows) error, statement string, args ...any) {
	q.exec(statement, args...)
	q.scans = append(q.scans, scan)
}

// conn is what a batch is sent over: a connection, or a pool of them.
type conn interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// run sends the batch in one round trip. Statements without rows yield no set of rows here.
func (q *batch) run(ctx context.Context, c conn) error {
	rows, err := c.QueryContext(ctx, q.text.String(), q.args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for n, scan := range q.scans {
		if n > 0 && !rows.NextResultSet() {
			break
		}
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
	}
	for rows.NextResultSet() {
		continue // what follows the last rows may fail as well
	}
	return rows.Err()
}

// list returns the part n times, separated by commas.
func list(part string, n int) string {
	return strings.TrimSuffix(strings.Repeat(part+", ", n), ", ")
}

// anyOf returns a condition for one of several leases, and its arguments. of is the table's name
// and a dot, or empty.
func anyOf(of string, keys []sqllease.Key) (string, []any) {
	var args []any
	for _, k := range keys {
		args = append(args, k.Name, string(k.ID))
	}
	return "(" + strings.TrimSuffix(strings.Repeat("("+of+"name = ? AND "+of+"lease = ?) OR ", len(keys)), " OR ") + ")", args
}

// values returns the values as arguments.
func values[T ~string](all []T) []any {
	args := make([]any, 0, len(all))
	for _, x := range all {
		args = append(args, string(x))
	}
	return args
}

// sql inserts the expression for the server's clock and the prefix of the tables. A variable of
// the session is $@name. What the arguments insert has none of those.
func (b *Backend) sql(format string, args ...any) string {
	text, ok := b.texts.Load(format)
	if !ok {
		text, _ = b.texts.LoadOrStore(format, b.names.Replace(format))
	}
	if len(args) > 0 {
		return fmt.Sprintf(text.(string), args...) //nolint:forcetypeassert // nothing else is stored there
	}
	return text.(string) //nolint:forcetypeassert // nothing else is stored there
}
