package rowlock

import (
	"errors"
	"fmt"
	"reflect"
)

// The kinds of error. Test with errors.Is; LockError carries the details.
var (
	// ErrBusy: another transaction has locked a row. NoWait found that, or the time-out elapsed.
	ErrBusy = errors.New("row is locked")
	// ErrDeadlock: two transactions waited for each other, and the database ended this
	// one. Roll it back and run it again from its start.
	ErrDeadlock = errors.New("deadlock")
	// ErrConflict: the row was changed after this transaction had begun to read, and its isolation
	// (repeatable read or above) does not let it see the change. Roll it back and run it again from
	// its start.
	ErrConflict = errors.New("row has changed since the transaction began")
	// ErrMissing: a row does not exist, so nothing was locked for it.
	ErrMissing = errors.New("row does not exist")
)

// LockError reports a lock that the database refused. It is its Kind and its Err.
type LockError struct {
	// Kind is ErrBusy, ErrDeadlock or ErrConflict.
	Kind error
	// Table is the table, and Lock what Name was to lock; empty if Explain made the error.
	Table string
	Lock  string
	// Over reports that the transaction cannot continue: the caller has to roll it back, and may
	// run it again from its start. Otherwise the transaction is as it was before the call.
	Over bool
	// Err is the driver's error.
	Err error
}

// Error states what happened, in which table, and whether the transaction can continue.
func (e *LockError) Error() string {
	where, over := "", ""
	if e.Table != "" {
		where = fmt.Sprintf(" in table %q", e.Table)
	}
	if e.Lock != "" {
		where = fmt.Sprintf(", with the name %q", e.Lock)
	}
	if e.Over {
		over = "; roll the transaction back"
	}
	return fmt.Sprintf("%v%s: %v%s", e.Kind, where, e.Err, over)
}

// Unwrap returns the kind and the cause.
func (e *LockError) Unwrap() []error { return []error{e.Kind, e.Err} }

// MissingError reports that fewer rows exist than keys were given. It is ErrMissing. The rows that
// were found are locked.
type MissingError struct {
	Table  string
	Asked  int
	Locked int
}

// Error states how many of the rows were found and locked.
func (e *MissingError) Error() string {
	return fmt.Sprintf("%v: %d of %d rows of table %q were found and locked", ErrMissing, e.Locked, e.Asked, e.Table)
}

// Unwrap returns ErrMissing.
func (*MissingError) Unwrap() error { return ErrMissing }

// Explain maps an error of the caller's own statement or commit, which may also report a deadlock,
// a time-out or a conflict, to a LockError that wraps it. It returns any other error, and nil,
// unchanged.
func Explain(err error) error {
	if _, done := errors.AsType[*LockError](err); done {
		return err
	}
	if kind := kindOf(err); kind != nil {
		return &LockError{Kind: kind, Over: true, Err: err}
	}
	return err
}

// Again reports whether a transaction that failed with err is worth running again from its start,
// because it met a deadlock or a conflict.
func Again(err error) bool {
	kind := kindOf(err)
	return kind != nil && !errors.Is(kind, ErrBusy)
}

// kindOf maps the errors of databases to the kinds of this package, and all other errors to nil. It
// is the only place that knows them.
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

// mysqlNumber returns the number of a *mysql.MySQLError in the chain, or 0 if there is none. The
// error type has no method for it, so it is found by its name and its field. This way the package
// need not import the driver.
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
