package rowlock

import (
	"errors"
	"fmt"
	"reflect"
)

// The kinds of error. Test with errors.Is; LockError carries the details.
var (
	// ErrBusy: another transaction has a row. NoWait found that, or the time-out ran out.
	ErrBusy = errors.New("row is locked")
	// ErrDeadlock: two transactions waited for each other, and the database ended this
	// one. Roll it back and run it again from its start.
	ErrDeadlock = errors.New("deadlock")
	// ErrConflict: the row was changed after this transaction had begun to read, and its
	// isolation (repeatable read or above) does not let it see that. Roll it back and run
	// it again from its start.
	ErrConflict = errors.New("row has changed since the transaction began")
	// ErrMissing: a row is not there, so nothing was locked for it.
	ErrMissing = errors.New("row is not there")
)

// LockError is what the database said about a lock. It is its Kind and its Err.
type LockError struct {
	// Kind is ErrBusy, ErrDeadlock or ErrConflict.
	Kind error
	// Table is which; empty where Explain made the error.
	Table string
	// Over says that the transaction cannot go on: the caller has to roll it back, and
	// may run it again from its start. Otherwise it is as it was before the call.
	Over bool
	// Err is what the driver gave.
	Err error
}

// Error says what happened, in which table, and whether the transaction can go on.
func (e *LockError) Error() string {
	where, over := "", ""
	if e.Table != "" {
		where = fmt.Sprintf(" in table %q", e.Table)
	}
	if e.Over {
		over = "; roll the transaction back"
	}
	return fmt.Sprintf("%v%s: %v%s", e.Kind, where, e.Err, over)
}

// Unwrap makes it its kind and its cause.
func (e *LockError) Unwrap() []error { return []error{e.Kind, e.Err} }

// MissingError says that fewer rows are there than keys were given. It is ErrMissing. What
// was found is locked.
type MissingError struct {
	Table  string
	Asked  int
	Locked int
}

// Error says how many of how many.
func (e *MissingError) Error() string {
	return fmt.Sprintf("%v: %d of %d rows of table %q were found and locked", ErrMissing, e.Locked, e.Asked, e.Table)
}

// Unwrap makes it ErrMissing.
func (*MissingError) Unwrap() error { return ErrMissing }

// Explain maps an error of the caller's own statement or commit, where a deadlock, a
// time-out or a conflict may show as well, to a LockError that wraps it. Any other error,
// and nil, it gives back as it is.
func Explain(err error) error {
	if _, done := errors.AsType[*LockError](err); done {
		return err
	}
	if kind := kindOf(err); kind != nil {
		return &LockError{Kind: kind, Over: true, Err: err}
	}
	return err
}

// Again reports whether the transaction that failed with err is worth running again from
// its start: it met a deadlock or a conflict.
func Again(err error) bool {
	kind := kindOf(err)
	return kind != nil && !errors.Is(kind, ErrBusy)
}

// kindOf is the one place that knows what databases say; nil for everything else.
func kindOf(err error) error {
	for _, kind := range []error{ErrBusy, ErrDeadlock, ErrConflict} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	var postgres interface{ SQLState() string }
	if errors.As(err, &postgres) {
		switch postgres.SQLState() {
		case "55P03": // lock_not_available: NOWAIT, and lock_timeout
			return ErrBusy
		case "40P01": // deadlock_detected
			return ErrDeadlock
		case "40001": // serialization_failure
			return ErrConflict
		}
		return nil
	}
	switch mysqlNumber(err) {
	case 1205, 3572: // ER_LOCK_WAIT_TIMEOUT, also of MariaDB's NOWAIT; ER_LOCK_NOWAIT
		return ErrBusy
	case 1213: // ER_LOCK_DEADLOCK
		return ErrDeadlock
	case 1020: // ER_CHECKREAD
		return ErrConflict
	}
	return nil
}

// mysqlNumber is the number of a *mysql.MySQLError in the chain, and 0 where there is
// none. It is found by its name and field, since it has no method, so that this package need not
// import the driver.
func mysqlNumber(err error) uint64 {
	for err != nil {
		if v := reflect.Indirect(reflect.ValueOf(err)); v.Kind() == reflect.Struct && v.Type().Name() == "MySQLError" {
			if n := v.FieldByName("Number"); n.IsValid() && n.Kind() == reflect.Uint16 {
				return n.Uint()
			}
		}
		if many, ok := err.(interface{ Unwrap() []error }); ok {
			for _, one := range many.Unwrap() {
				if n := mysqlNumber(one); n != 0 {
					return n
				}
			}
			return 0
		}
		err = errors.Unwrap(err)
	}
	return 0
}
