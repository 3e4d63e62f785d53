package rowlock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-io/holdfast/fence"
)

// Busy selects what to do when another transaction has locked a row.
type Busy uint8

// The values of Busy.
const (
	Wait       Busy = iota // until it is free, or the time-out has elapsed
	NoWait                 // return ErrBusy immediately
	SkipLocked             // leave it out
)

// MaxTimeout is the longest time-out.
const MaxTimeout = 24 * time.Hour

// Request selects rows and how to lock them.
type Request struct {
	// Keys name the rows, each once, 1 to MaxKeys. Their order does not matter: rows are
	// locked in the order of the keys as the database compares them, so that two calls
	// with the same keys do not wait for each other. Required.
	Keys []any
	// Shared allows other transactions to lock the rows shared too, and keeps out writers. Default:
	// exclusive. Optional.
	Shared bool
	// Busy selects what to do when another transaction has locked a row. Default: Wait. Optional.
	Busy Busy
	// Timeout is how long to wait for any one row: 1 ms to MaxTimeout, with Wait only. MySQL and
	// MariaDB count in whole seconds, rounded up. Default: the setting of the connection. Optional.
	Timeout time.Duration
	// Columns are read from the rows as they are once they are locked. A SELECT before the lock
	// does not read them so, nor, in MySQL at repeatable read, does one after it. Default: the key.
	// Optional.
	Columns []string
	// Scan is called with each row, in the order of the keys. If it returns an error, the call ends
	// and returns that error, and the transaction can only be rolled back. Scan must not use the
	// transaction. Optional.
	Scan func(Row) error
}

// Lock locks rows until the caller's transaction ends, and returns how many. Each row then is as it
// was when it was locked, and no other transaction changes it.
//
// After ErrBusy from NoWait or a Timeout the transaction is as it was before, except that MySQL and
// MariaDB keep the locks of the rows before the busy one. Otherwise see LockError.Over.
//
// Errors: *LockError (ErrBusy, ErrDeadlock, ErrConflict); *MissingError, unless rows may be
// skipped; *fence.InvalidError, with nothing sent; those of Scan; those of the database.
func (l *Locker) Lock(ctx context.Context, tx Tx, r Request) (int, error) {
	query, err := l.lockQuery(r)
	if err != nil {
		return 0, err
	}
	n := 0
	lock := func() error { return l.read(ctx, tx, query, r.Keys, r.Scan, &n) }
	switch {
	case r.Timeout != 0:
		err = l.guarded(ctx, tx, func() error { return l.timed(ctx, tx, r.Timeout, lock) })
	case r.Busy == NoWait:
		err = l.guarded(ctx, tx, lock)
	default:
		err = l.fail(lock(), true)
	}
	switch {
	case err != nil:
		return 0, err
	case n < len(r.Keys) && r.Busy != SkipLocked:
		return n, &MissingError{Table: l.name, Asked: len(r.Keys), Locked: n}
	}
	return n, nil
}

func (l *Locker) lockQuery(r Request) (string, error) {
	if err := r.validate(); err != nil {
		return "", err
	}
	columns, err := l.columns("columns", r.Columns)
	if err != nil {
		return "", err
	}
	params := make([]string, len(r.Keys))
	for i := range params {
		params[i] = l.param(i + 1)
	}
	q := "SELECT " + columns + " FROM " + l.table + " WHERE " + l.key + " IN (" + strings.Join(params, ", ") + ") ORDER BY " + l.key +
		l.every() + l.clause(r.Shared, r.Busy)
	if l.dialect == MariaDB && r.Timeout > 0 {
		q += " WAIT " + strconv.FormatInt(seconds(r.Timeout), 10)
	}
	return q, nil
}

func (r Request) validate() error {
	switch {
	case len(r.Keys) == 0 || len(r.Keys) > MaxKeys:
		return &fence.InvalidError{Field: "keys", Value: strconv.Itoa(len(r.Keys)), Bound: fmt.Sprintf("1 to %d", MaxKeys)}
	case r.Busy > SkipLocked:
		return &fence.InvalidError{Field: "busy", Value: strconv.Itoa(int(r.Busy)), Bound: "Wait, NoWait or SkipLocked"}
	case r.Timeout != 0 && (r.Timeout < time.Millisecond || r.Timeout > MaxTimeout):
		return &fence.InvalidError{Field: "timeout", Value: r.Timeout.String(), Bound: "1ms to " + MaxTimeout.String()}
	case r.Timeout != 0 && r.Busy != Wait:
		return &fence.InvalidError{Field: "timeout", Value: r.Timeout.String(), Bound: "0 with NoWait and SkipLocked"}
	}
	seen := make(map[any]bool, len(r.Keys))
	for i, k := range r.Keys {
		if !reflect.ValueOf(k).Comparable() {
			continue // the database judges it
		}
		if seen[k] {
			return &fence.InvalidError{Field: "keys[" + strconv.Itoa(i) + "]", Value: fmt.Sprintf("%.64q", fmt.Sprint(k)), Bound: "another than those before it"}
		}
		seen[k] = true
	}
	return nil
}

// read runs a locking SELECT and counts its rows.
func (*Locker) read(ctx context.Context, tx Tx, query string, args []any, scan func(Row) error, n *int) error {
	return tx.query(ctx, query, args, func(row Row) error {
		*n++
		if scan == nil {
			return nil
		}
		return scan(row)
	})
}

// fail adds the table and the state of the transaction to an error.
func (l *Locker) fail(err error, over bool) error {
	if err == nil {
		return nil
	}
	if kind := kindOf(err); kind != nil {
		return &LockError{Kind: kind, Table: l.name, Over: over, Err: err}
	}
	return fmt.Errorf("lock rows of table %q: %w", l.name, err)
}

const (
	savepoint = "SAVEPOINT holdfast_rowlock"
	release   = "RELEASE SAVEPOINT holdfast_rowlock"
	back      = "ROLLBACK TO SAVEPOINT holdfast_rowlock"
)

// guarded runs f behind a savepoint, so that the caller's transaction can continue when a row is
// busy: PostgreSQL would otherwise fail it. MySQL keeps a transaction after a time-out unless
// innodb_rollback_on_timeout is set. In that case the savepoint is gone, and continuing would write
// outside of any transaction.
func (l *Locker) guarded(ctx context.Context, tx Tx, f func() error) error {
	if err := tx.exec(ctx, savepoint); err != nil {
		return l.fail(err, true)
	}
	err := f()
	if err == nil {
		return l.fail(tx.exec(ctx, release), true)
	}
	if !errors.Is(kindOf(err), ErrBusy) {
		return l.fail(err, true)
	}
	undone := tx.exec(ctx, back)
	if undone == nil {
		undone = tx.exec(ctx, release)
	}
	if undone != nil {
		return l.fail(errors.Join(err, undone), true)
	}
	return l.fail(err, false)
}

// timed runs f with the time-out set, and restores the previous value.
func (l *Locker) timed(ctx context.Context, tx Tx, d time.Duration, f func() error) error {
	var get, set string
	var was, to any
	switch l.dialect {
	case MariaDB:
		return f() // it is in the statement
	case MySQL:
		get, set = "SELECT @@SESSION.innodb_lock_wait_timeout", "SET SESSION innodb_lock_wait_timeout = ?"
		was, to = new(int64), seconds(d)
	case Postgres:
		get, set = "SELECT current_setting('lock_timeout')", "SELECT set_config('lock_timeout', $1, true)"
		was, to = new(string), strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)+"ms"
	}
	if err := tx.query(ctx, get, nil, func(row Row) error { return row.Scan(was) }); err != nil {
		return err
	}
	if err := tx.exec(ctx, set, to); err != nil {
		return err
	}
	err := f()
	if err != nil && l.dialect == Postgres {
		return err // the rollback to the savepoint, or the end of the transaction, restores it
	}
	// Also when the caller's context has ended: the session outlives the transaction.
	return errors.Join(err, tx.exec(context.WithoutCancel(ctx), set, was))
}

// seconds returns d in whole seconds, rounded up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
