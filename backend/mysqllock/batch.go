package mysqllock

import (
	"context"
	"database/sql"
	"strings"
)

// batch is statements that are sent together. The server executes them in order, up to the first
// that fails. The client library writes the arguments into the text: texts as binary literals, so
// that no character set or collation matters.
type batch struct {
	text  strings.Builder
	args  []any
	scans []func(*sql.Rows) error // one for each statement that has rows
}

// part is an argument that is a piece of a statement, with arguments of its own.
type part struct {
	text string
	args []any
}

// exec adds a statement without rows.
func (q *batch) exec(statement string, args ...any) {
	if q.text.Len() > 0 {
		q.text.WriteString(";\n")
	}
	q.write(part{statement, args})
}

// write adds a piece of a statement. Each question mark in it stands for an argument.
func (q *batch) write(p part) {
	text := p.text
	for _, a := range p.args {
		before, after, _ := strings.Cut(text, "?")
		q.text.WriteString(before)
		text = after
		if piece, ok := a.(part); ok {
			q.write(piece)
			continue
		}
		if s, ok := a.(string); ok {
			a = []byte(s)
		}
		q.text.WriteByte('?')
		q.args = append(q.args, a)
	}
	q.text.WriteString(text)
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

// list returns the text n times, separated by commas, with the arguments.
func list(text string, n int, args []any) part {
	return part{strings.TrimSuffix(strings.Repeat(text+", ", n), ", "), args}
}

// in returns a list of texts.
func in[T ~string](all []T) part {
	args := make([]any, 0, len(all))
	for _, x := range all {
		args = append(args, string(x))
	}
	return list("?", len(all), args)
}

// anyOf returns a condition that is true where one of several is.
func anyOf(all []any) part {
	return part{strings.TrimSuffix(strings.Repeat("? OR ", len(all)), " OR "), all}
}

// sql inserts the expression for the server's clock and the prefix of the tables. A variable of
// the session is $@name.
func (b *Backend) sql(statement string) string {
	text, ok := b.texts.Load(statement)
	if !ok {
		text, _ = b.texts.LoadOrStore(statement, b.names.Replace(statement))
	}
	return text.(string) //nolint:forcetypeassert // nothing else is stored there
}
