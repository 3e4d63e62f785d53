package mysqllock

import (
	"context"
	"database/sql/driver"
	"errors"
	"net"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// What can be wrong with the database. Each is wrapped in a *backend.UnavailableError, except
// ErrNewer, ErrOlder, ErrGalera and ErrForgetful, which are backend.ErrUnsupported. Test with errors.Is.
var (
	// ErrNoSchema: the tables do not exist, and the user may not create them. See
	// [Backend.Migrate].
	ErrNoSchema = errors.New("the tables of holdfast do not exist, and this user may not create them: run holdfast init-store as a user who may")
	// ErrNewer: a later version of Holdfast created the tables. They were not changed.
	ErrNewer = errors.New("the tables are of a later version")
	// ErrOlder: a version of Holdfast that was never released created the tables. They were not
	// changed.
	ErrOlder = errors.New("the tables are of a version before the first release: drop them when no program uses them, or use another prefix")
	// ErrReadOnly: the server is a replica, or read-only.
	ErrReadOnly = errors.New("the server is read-only")
	// ErrGalera: the server is a node of a Galera cluster, which may lose what it has
	// committed.
	ErrGalera = errors.New("the server is a node of a Galera cluster (wsrep_on)")
	// ErrForgetful: the server does not write a commit before it acknowledges it.
	ErrForgetful = errors.New("innodb_flush_log_at_trx_commit is 0: a crash of the server would forget grants")
)

// Numbers of the servers' errors.
const (
	codeNoDatabase   = 1049
	codeNoTable      = 1146
	codeDeniedDB     = 1044
	codeDenied       = 1142
	codeDeniedColumn = 1143
	codeDeniedAny    = 1227
	codeNotOwner     = 1095 // of a connection that a break ends
	codeShutdown     = 1053
	codeInterrupted  = 1317
	codeKilled       = 1927 // MariaDB
	codeRested       = 4031 // MySQL: wait_timeout
	codeCommitFailed = 1180
	codeDeadlock     = 1213
	codeChanged      = 1020 // MariaDB with innodb_snapshot_isolation
	codeLockTimeout  = 1205
	codeReadOnlyTxn  = 1792
	codeReadOnly     = 1290
	codeInReadOnly   = 1836
)

func code(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

// answered reports whether the server itself reported that the statement failed, and keeps the
// connection. An error about its own end, or about a commit, leaves the outcome open.
func answered(err error) bool {
	if executed(err) {
		return false
	}
	switch code(err) {
	case 0, codeShutdown, codeInterrupted, codeKilled, codeRested, codeCommitFailed:
		return false
	}
	return true
}

// executedError is the error of an UPDATE that is a transaction by itself, and of a SELECT after it. The
// UPDATE may have been executed, and the SELECT may have failed.
type executedError struct{ error }

// afterUpdate returns the error of the two. One that only a statement gets that locks or writes is that
// of the UPDATE, so that nothing was executed.
func afterUpdate(err error) error {
	if err == nil || transient(err) || demoted(err) || code(err) == codeLockTimeout {
		return err
	}
	return executedError{err}
}

func (e executedError) Unwrap() error { return e.error }

func executed(err error) bool {
	_, ok := errors.AsType[executedError](err)
	return ok
}

// unsent reports whether nothing was sent. The client library knows that, or the server had ended
// a connection that was idle for too long.
func unsent(err error) bool { return errors.Is(err, driver.ErrBadConn) || code(err) == codeRested }

func transient(err error) bool {
	c := code(err)
	return c == codeDeadlock || c == codeChanged
}

// broken reports whether the connection broke, perhaps while it was idle. A connection that could
// not be established is not broken.
func broken(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false
	}
	switch code(err) {
	case 0, codeShutdown, codeKilled, codeRested:
		return true
	}
	return false
}

// demoted reports whether the server became a replica, or is about to: the next primary may be
// found under the same address already, and connections to the old one stay.
func demoted(err error) bool {
	switch code(err) {
	case codeReadOnly, codeReadOnlyTxn, codeInReadOnly:
		return true
	}
	return errors.Is(err, ErrReadOnly)
}

// primary returns the error of a row that has a column for whether the server is read-only. A
// user who may write there all the same must not take it for the primary.
func primary(readOnly bool, err error) error {
	if err == nil && readOnly {
		return ErrReadOnly
	}
	return err
}

// denied reports whether the user lacks a right.
func denied(err error) bool {
	switch code(err) {
	case codeDenied, codeDeniedDB, codeDeniedColumn, codeDeniedAny, codeNotOwner:
		return true
	}
	return false
}

// remedy returns what to change where the server refuses this client until that is changed, or "".
func remedy(err error) string {
	const codeLogin, codeLoginEmpty = 1045, 1698
	switch c := code(err); {
	case c == codeLogin, c == codeLoginEmpty:
		return "correct the user and the password"
	case c == codeNoDatabase:
		return "name a database that exists"
	case c == codeNoTable, errors.Is(err, ErrNoSchema):
		return "create the tables with holdfast init-store"
	case denied(err):
		return "grant the user what the page of this store names"
	case errors.Is(err, mysql.ErrNoTLS):
		return "turn TLS on in the server, or do not ask for it"
	case errors.Is(err, mysql.ErrCleartextPassword), errors.Is(err, mysql.ErrNativePassword), errors.Is(err, mysql.ErrOldPassword), errors.Is(err, mysql.ErrUnknownPlugin):
		return "use an account that authenticates with a password which is not sent in clear text"
	case c != 0 && !passes(err):
		return connect.Unknown
	}
	return ""
}

// passes reports whether the server may answer a retry differently although no operator has changed anything.
func passes(err error) bool { //nolint:mnd // numbers of the servers' errors
	switch c := code(err); c {
	case codeShutdown, codeInterrupted, codeKilled, codeRested, codeCommitFailed, codeDeadlock, codeChanged, codeLockTimeout:
	case codeReadOnlyTxn, codeReadOnly, codeInReadOnly: // a fail-over
	case 1040, 1203, 1226: // too many connections, or too much use by this user in an hour
	case 1021, 1030, 1037, 1038, 1041, 1114, 1135, 1206, 1637: // disk, memory, threads, locks, transactions
	case 1042, 1043, 1152, 1158, 1159, 1160, 1161, 1184, 1189, 1190: // the network
	case 1412, 1615: // a change of a table beside the statement
	case 1969, 3024: // a limit of the time of a statement
	case 1047, 1105, 3032, 3101, 3168: // a server that is not ready, and proxies
	default:
		return c >= 2000 && c < 3000 || c >= 9000 && c < 10000 // of proxies, about their own connections
	}
	return true
}

// unavailable maps the errors of the server, the client library and the network. mayHold: the
// request may have been executed all the same.
func unavailable(op string, mayHold bool, err error) error {
	return unavailableAt(backendName, op, mayHold, err)
}

func unavailableAt(name, op string, mayHold bool, err error) error {
	if errors.Is(err, backend.ErrClosed) || errors.Is(err, backend.ErrUnsupported) || errors.Is(err, backend.ErrInvalid) {
		return err
	}
	if demoted(err) && !errors.Is(err, ErrReadOnly) {
		err = errors.Join(ErrReadOnly, err)
	}
	return &backend.UnavailableError{Backend: name, Op: op, MayHold: mayHold, Err: connect.Refused(name, err, remedy(err))}
}
