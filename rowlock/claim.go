package rowlock

import (
	"context"
	"fmt"
	"strconv"

	"github.com/holdfast-io/holdfast/fence"
)

// Batch says which rows a worker wants: any so many of those that match.
type Batch struct {
	// Limit is how many rows at most, 1 to MaxKeys. Required.
	Limit int
	// Where is a condition in SQL that the rows meet, such as "state = 'ready' AND run_at
	// <= now()". It is text of the program, never made of what came from outside: values
	// go to Args, and are written $1 and so on with PostgreSQL, ? otherwise. An index that
	// serves it and Order keeps MySQL and MariaDB from locking more rows than they give.
	// Default: every row. Optional.
	Where string
	// Args are the values of Where, at most MaxArgs. Optional.
	Args []any
	// Order are the columns by which the first are taken. Default: the key. Optional.
	Order []string
	// Columns are what is read. Default: the key. Optional.
	Columns []string
	// Scan is called with each row, in their order. An error of it ends the call and is
	// its result; the transaction can go on only to be rolled back. It must not use the
	// transaction. Required: a worker has to know what it got.
	Scan func(Row) error
}

// Claim locks, exclusively, the first rows that match and that nobody else has, and returns
// how many. It never waits for a row; 0 with no error says that there is nothing to do.
//
// No row is given to two workers: it stays locked until the transaction ends. So do the
// work, write that it is done (in the same transaction, so that the row matches no more),
// and commit. When the worker dies, its connection does, and the database rolls back and
// gives the rows to the next one that asks. A worker that is cut off without a word keeps
// its rows until the database notices (tcp_keepalives_idle, and
// idle_in_transaction_session_timeout of PostgreSQL, bound that).
//
// What the worker does outside of the database it may do twice: when it dies between that
// and its commit.
//
// Errors: *LockError (ErrDeadlock, ErrConflict); *fence.InvalidError, with nothing sent; of
// Scan; of the database.
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
