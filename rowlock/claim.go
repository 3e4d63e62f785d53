package rowlock

import (
	"context"
	"fmt"
	"strconv"

	"github.com/holdfast-io/holdfast/fence"
)

// Batch selects the rows that a worker wants: up to Limit of those that match.
type Batch struct {
	// Limit is the maximum number of rows, 1 to MaxKeys. Required.
	Limit int
	// Where is a condition in SQL that the rows meet, such as "state = 'ready' AND run_at <=
	// now()". It is text of the program and must never contain input from outside: values belong in
	// Args, and are written $1 and so on with PostgreSQL, ? otherwise. An index that serves Where
	// and Order keeps MySQL and MariaDB from locking more rows than they return. Default: every
	// row. Optional.
	Where string
	// Args are the values of Where, at most MaxArgs. Optional.
	Args []any
	// Order are the columns that decide which rows are first. Default: the key. Optional.
	Order []string
	// Columns are the columns to read. Default: the key. Optional.
	Columns []string
	// Scan is called with each row, in their order. If it returns an error, the call ends and
	// returns that error, and the transaction can only be rolled back. Scan must not use the
	// transaction. Required: a worker has to know which rows it got.
	Scan func(Row) error
}

// Claim locks, exclusively, the first rows that match and that no other transaction has locked, and
// returns how many. It never waits for a row; 0 with a nil error means that there is nothing to do.
//
// No row is given to two workers: it stays locked until the transaction ends. So do the work,
// record that it is done (in the same transaction, so that the row no longer matches), and commit.
// When the worker dies, its connection closes, and the database rolls back and offers the rows to
// the next Claim. If a worker is cut off without its connection being closed, its rows stay locked
// until the database notices (tcp_keepalives_idle, and idle_in_transaction_session_timeout of
// PostgreSQL, bound that).
//
// Work outside the database may be done twice: if the worker dies between that work and its commit.
//
// Errors: *LockError (ErrDeadlock, ErrConflict); *fence.InvalidError, with nothing sent; those of
// Scan; those of the database.
func (l *Locker) Claim(ctx context.Context, tx Tx, b Batch) (int, error) {
	query, err := l.claimQuery(b)
	if err != nil {
		return 0, err
	}
	n := 0
	args := append(append([]any(nil), b.Args...), b.Limit)
	if err := l.fail(l.read(ctx, tx, query, args, b.Scan, &n), true); err != nil {
		return 0, err
	}
	return n, nil
}

func (l *Locker) claimQuery(b Batch) (string, error) {
	switch {
	case b.Limit < 1 || b.Limit > MaxKeys:
		return "", &fence.InvalidError{Field: "limit", Value: strconv.Itoa(b.Limit), Bound: fmt.Sprintf("1 to %d", MaxKeys)}
	case len(b.Args) > MaxArgs:
		return "", &fence.InvalidError{Field: "args", Value: strconv.Itoa(len(b.Args)), Bound: fmt.Sprintf("at most %d", MaxArgs)}
	case len(b.Args) > 0 && b.Where == "":
		return "", &fence.InvalidError{Field: "args", Value: strconv.Itoa(len(b.Args)), Bound: "none without Where"}
	case b.Scan == nil:
		return "", &fence.InvalidError{Field: "scan", Value: "nil", Bound: "a function"}
	}
	columns, err := l.columns("columns", b.Columns)
	if err != nil {
		return "", err
	}
	order, err := l.columns("order", b.Order)
	if err != nil {
		return "", err
	}
	q := "SELECT " + columns + " FROM " + l.table
	if b.Where != "" {
		q += " WHERE (" + b.Where + ")"
	}
	return q + " ORDER BY " + order + " LIMIT " + l.param(len(b.Args)+1) + l.clause(false, SkipLocked), nil
}
