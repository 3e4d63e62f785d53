package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-io/holdfast/backend"
)

// What can be wrong with the database. Each comes inside a *backend.UnavailableError,
// but ErrPooler, ErrNewer, ErrOld and ErrEncoding, which are backend.ErrUnsupported. Test with errors.Is.
var (
	// ErrNoSchema: the tables are not there, and the role may not make them. See
	// [Backend.Migrate].
	ErrNoSchema = errors.New("the tables of holdfast are not there, and may not be made: run holdfast migrate as a role that may")
	// ErrPooler: what answers is a pooler that does not let us set what we need for a
	// connection. Nothing was done; with listen=false it is not needed.
	ErrPooler = errors.New("a pooler is in between, which refuses our settings: use listen=false with it")
	// ErrNewer: a later version of Holdfast made the tables. They were not changed.
	ErrNewer = errors.New("the tables are of a later version")
	// ErrEncoding: the database is not in UTF-8, so that it cannot keep every name.
	ErrEncoding = errors.New("the database's encoding is not UTF8")
	// ErrOld: the server is too old for advisory locks as Holdfast needs them: it does not end
	// connections that say nothing, so that the locks of a client that is cut off would never
	// be free. Nothing was done.
	ErrOld = errors.New("advisory locks need PostgreSQL 14 or newer, which has idle_session_timeout")
	// ErrReadOnly: the server is a standby, or read-only.
	ErrReadOnly = errors.New("the server is read-only")
)

var (
	errNoMeta       = errors.New("the row of the table meta is not there")
	errNotCommitted = errors.New("the transaction was not committed")
	errDeaf         = fmt.Errorf("watch: notifications are turned off: %w", backend.ErrUnsupported)
	errAsleep       = errors.New("the watcher slept for too long")
)

type pgError = pgconn.PgError

// Codes of PostgreSQL's errors; see its appendix A.
const (
	codeSerialization = "40001"
	codeDeadlock      = "40P01"
	codeLockTimeout   = "55P03"
	codeProtocol      = "08P01" // PgBouncer's, for what it does not know
	codeReadOnly      = "25006"
	codeNoTable       = "42P01"
	codeNoSchema      = "3F000"
	codeNoRight       = "42501"
	codeUnique        = "23505"
	codeRested        = "57P05" // idle_session_timeout: nothing had come
	codeDuplicate     = "42P07"
	codeNoSetting     = "42704"
)

func code(err error) string {
	if pg, ok := errors.AsType[*pgError](err); ok {
		return pg.Code
	}
	return ""
}

// transient reports whether the same transaction may work when it is tried again.
// Nothing was changed.
func transient(err error) bool {
	c := code(err)
	return c == codeSerialization || c == codeDeadlock
}

// broken reports whether the connection broke, perhaps while nobody used it. One that
// could not be made is not broken.
func broken(err error) bool {
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false
	}
	return !ofRequest(err)
}

// demoted reports whether the server does not take what only the primary takes. A pooler
// keeps our connections when the server behind it becomes a standby: new ones are looked at
// before they are used.
func demoted(err error) bool { return code(err) == codeReadOnly }

func lockTimeout(err error) bool { return code(err) == codeLockTimeout }

// ofRequest reports whether the server refused a statement, and goes on with the connection:
// the error may be due to one of the requests of a flight, so that the others may work
// without it. The word is told in the language of the server, too; poolers know one only.
func ofRequest(err error) bool {
	pg, ok := errors.AsType[*pgError](err)
	return ok && cmp.Or(pg.SeverityUnlocalized, pg.Severity) == "ERROR" && !lostByPooler(err)
}

// ended reports whether the server says itself that it ends the connection.
func ended(err error) bool { return code(err) != "" && broken(err) && !lostByPooler(err) }

// lostByPooler reports whether it may be a pooler that says that its connection to the server
// broke (class 08), some of them in the words of a refusal. The server goes on with what it
// was sent.
func lostByPooler(err error) bool { return strings.HasPrefix(code(err), "08") }

// refused reports whether the error of a commit says that nothing was changed: the
// server says so itself, and goes on with the connection. Anything else leaves it
// unknown.
func refused(err error) bool {
	return errors.Is(err, errNotCommitted) || ofRequest(err)
}

// unavailable maps what the server, the client library and the network say. mayHold:
// what was asked for may have been done all the same.
func unavailable(op string, mayHold bool, err error) error {
	return unavailableAt(backendName, op, mayHold, err)
}

func unavailableAt(name, op string, mayHold bool, err error) error {
	if errors.Is(err, backend.ErrClosed) || errors.Is(err, backend.ErrUnsupported) || errors.Is(err, backend.ErrInvalid) {
		return err
	}
	if code(err) == codeProtocol && strings.Contains(err.Error(), "unsupported startup parameter") {
		return fmt.Errorf("%s: %s: %w: %w", name, op, ErrPooler, backend.ErrUnsupported)
	}
	return &backend.UnavailableError{Backend: name, Op: op, MayHold: mayHold, Err: cause(err)}
}

// cause is the error without what may be secret, and with ours where it is one.
func cause(err error) error {
	var connect *pgconn.ConnectError
	var op *net.OpError
	switch {
	case code(err) == codeReadOnly:
		return errors.Join(ErrReadOnly, err)
	case errors.As(err, &connect):
		return err // it tells host, user and database, and no password
	case errors.As(err, &op), errors.Is(err, pgx.ErrNoRows):
		return err
	}
	return err
}
