package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/connect"
)

// What can be wrong with the database. Each is wrapped in a *backend.UnavailableError, except
// ErrPooler, ErrNewer, ErrOlder, ErrOld and ErrEncoding, which are backend.ErrUnsupported. Test with
// errors.Is.
var (
	// ErrNoSchema: the tables do not exist, and the role may not create them. See
	// [Backend.Migrate].
	ErrNoSchema = errors.New("the tables of holdfast do not exist, and this role may not create them: run holdfast init-store as a role that may")
	// ErrPooler: the server is a pooler that does not accept the settings that we need for a
	// connection. Nothing was done. With listen=false they are not needed.
	ErrPooler = errors.New("a connection pooler refuses the settings of Holdfast: set listen=false")
	// ErrNewer: a later version of Holdfast created the tables. They were not changed.
	ErrNewer = errors.New("the tables are of a later version")
	// ErrOlder: a version of Holdfast that was never released created the tables. They were not
	// changed.
	ErrOlder = errors.New("the tables are of a version before the first release: drop the schema when no program uses it, or use another one")
	// ErrEncoding: the database is not in UTF-8, so that it cannot keep every name.
	ErrEncoding = errors.New("the database's encoding is not UTF8")
	// ErrOld: the server is too old for advisory locks as Holdfast needs them. It does not end
	// idle connections, so that the locks of a client that is cut off would never be free.
	// Nothing was done.
	ErrOld = errors.New("advisory locks need PostgreSQL 14 or newer, which has idle_session_timeout")
	// ErrReadOnly: the server is a standby, or read-only.
	ErrReadOnly = errors.New("the server is read-only")
)

var (
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
	codeRested        = "57P05" // idle_session_timeout: nothing had arrived
	codeDuplicate     = "42P07"
	codeNoSetting     = "42704"
)

// Settings that advisory locks need, and that a server before PostgreSQL 14 does not know.
const (
	settingIdle  = "idle_session_timeout"
	settingCheck = "client_connection_check_interval"
)

// tooOld adds ErrOld to the error of a connection that the server refused because it does not know
// one of our settings. The code alone is not enough: the configuration of the caller may have a
// setting of its own that no server knows, and other objects that are not there have the same code.
// The message is in the language of the server, and has the setting's name as it is.
func tooOld(err error) error {
	pg := answer(err)
	if pg == nil || pg.Code != codeNoSetting {
		return err
	}
	words := strings.FieldsFunc(pg.Message, func(r rune) bool { return r != '_' && r != '.' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if !slices.Contains(words, settingIdle) && !slices.Contains(words, settingCheck) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrOld, err)
}

// attempts returns the errors of the attempts to connect, in their order: at each address, and with and without TLS. Any other error
// is the only one.
func attempts(err error) []error {
	unconnected, ok := errors.AsType[*pgconn.ConnectError](err)
	if !ok {
		return []error{err}
	}
	if all, ok := unconnected.Unwrap().(interface{ Unwrap() []error }); ok {
		return all.Unwrap()
	}
	return []error{unconnected.Unwrap()}
}

// answer returns the answer of the server to the last attempt; nil: there was none.
func answer(err error) *pgError {
	all := attempts(err)
	pg, _ := errors.AsType[*pgError](all[len(all)-1])
	return pg
}

func code(err error) string {
	if pg := answer(err); pg != nil {
		return pg.Code
	}
	return ""
}

// transient reports whether a retry of the same transaction may succeed, without notifications after codeQueueFull. Nothing was
// changed.
func transient(err error) bool {
	c := code(err)
	return c == codeSerialization || c == codeDeadlock || c == codeQueueFull
}

// broken reports whether the connection broke, perhaps while it was idle. A connection that could
// not be established is not broken.
func broken(err error) bool {
	var unconnected *pgconn.ConnectError
	if errors.As(err, &unconnected) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false
	}
	return !ofRequest(err)
}

// demoted reports whether the server refuses what only the primary accepts. A pooler keeps our
// connections when the server behind it becomes a standby; new connections are checked before
// they are used.
func demoted(err error) bool { return code(err) == codeReadOnly }

// ofRequest reports whether the server refused a statement, and keeps the connection. The error
// may then be due to one of the requests of a batch, so that the others may succeed without it.
// The server sends the severity in its own language, too; poolers send only one form.
func ofRequest(err error) bool {
	pg := answer(err)
	return pg != nil && cmp.Or(pg.SeverityUnlocalized, pg.Severity) == "ERROR" && !lostByPooler(err)
}

// ended reports whether the server itself reported that it ends the connection.
func ended(err error) bool { return code(err) != "" && broken(err) && !lostByPooler(err) }

// lostByPooler reports whether a pooler may have reported that its connection to the server broke
// (class 08). Some poolers use the words of a refusal for that. The server continues with what it
// was sent.
func lostByPooler(err error) bool { return strings.HasPrefix(code(err), "08") }

// refused reports whether the error of a commit means that nothing was changed: the server itself
// reported the error, and keeps the connection. With any other error the outcome is unknown.
func refused(err error) bool {
	return errors.Is(err, errNotCommitted) || ofRequest(err)
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
	if pg := answer(err); pg != nil && pg.Code == codeProtocol && strings.Contains(pg.Message, "unsupported startup parameter") { // the code is that of all errors of a pooler
		return fmt.Errorf("%s: %s: %w: %w", name, op, ErrPooler, backend.ErrUnsupported)
	}
	if _, ok := errors.AsType[*backend.RefusedError](err); !ok && code(err) == codeNoRight {
		err = connect.Lacks(name, "to connect", err) // see rights.lacking for everything else
	}
	return &backend.UnavailableError{Backend: name, Op: op, MayHold: mayHold, Err: refusal(name, err)}
}

// refusal returns the error of the server, which is a *backend.RefusedError if no attempt can succeed until
// something is changed: what stopped one attempt may have passed when it is repeated. A server without TLS counts only where no attempt
// without TLS followed.
func refusal(name string, err error) error {
	switch {
	case code(err) == codeReadOnly:
		return errors.Join(ErrReadOnly, err)
	case errors.Is(err, backend.ErrRefused):
		return err
	}
	remedies := ""
	for _, attempt := range attempts(err) {
		refused, ok := errors.AsType[*backend.RefusedError](connect.Refused(name, attempt, remedy(attempt)))
		switch {
		case !ok:
			return err
		case remedies == "" || refused.Remedy != useTLS:
			remedies = refused.Remedy
		}
	}
	return &backend.RefusedError{Backend: name, Remedy: remedies, Err: err}
}

const useTLS = "set sslmode=disable, or turn ssl on in the server"

// remedy returns what to change where the server refuses this client until that is changed, or "".
func remedy(err error) string {
	const classLogin, codeNoDatabase = "28", "3D000"
	switch c := code(err); {
	case strings.HasPrefix(c, classLogin):
		return "correct the role and its password, or the line of pg_hba.conf for it"
	case c == codeNoDatabase:
		return "name a database that exists"
	case errors.Is(err, ErrNoSchema):
		return "create the tables with holdfast init-store"
	case strings.Contains(err.Error(), "server refused TLS connection"): // it has no type
		return useTLS
	case c != "" && !passes(c):
		return connect.Unknown
	}
	return ""
}

// passes reports whether the server, or a pooler, may answer a retry differently although no operator has changed anything.
func passes(code string) bool {
	switch code[:min(len(code), 2)] {
	case "08", "25", "40", "53", "55", "57", "58", "XX": // connection, a standby, rollback, resources, a lock, shutdown, the system
		return true
	}
	switch code {
	case codeQueueFull, "0A000", "26000", "42P05": // statements that were prepared before a change of the tables, or by another client of a pooler
		return true
	}
	return false
}
