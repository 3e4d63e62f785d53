package pglock

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-io/holdfast/backend"
)

// A server sends the severity in its own language, and also in English. Poolers and servers
// before 9.6 send it once.
func TestSeverityInAnotherLanguage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		err       error
		ofRequest bool
	}{
		{"refused, in German", &pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR"}, true},
		{"refused, by a pooler", &pgconn.PgError{Severity: "ERROR"}, true},
		{"refused, with words around it", fmt.Errorf("do: %w", &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR"}), true},
		{"the end, in German", &pgconn.PgError{Severity: "FATAL", SeverityUnlocalized: "FATAL"}, false},
		{"the end of the server", &pgconn.PgError{Severity: "PANIK", SeverityUnlocalized: "PANIC"}, false},
		{"a broken connection", errors.New("unexpected EOF"), false},
		{"that of an old pooler to the server", &pgconn.PgError{Severity: "ERROR", Code: "08P01"}, false},
	} {
		if got := ofRequest(c.err); got != c.ofRequest {
			t.Errorf("%s: the request's own is %v", c.name, got)
		}
		if got := broken(c.err); got == c.ofRequest {
			t.Errorf("%s: broken is %v", c.name, got)
		}
	}
}

// A server is too old for advisory locks only where it does not know a setting that they need.
func TestTooOld(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, code, message string
		old                 bool
	}{
		{"one of ours", "42704", `unrecognized configuration parameter "idle_session_timeout"`, true},
		{"the other one of ours", "42704", `unrecognized configuration parameter "client_connection_check_interval"`, true},
		{"one of ours, in German", "42704", `unbekannter Konfigurationsparameter »idle_session_timeout«`, true},
		{"one of the caller's", "42704", `unrecognized configuration parameter "work_memory"`, false},
		{"one of the caller's that is named alike", "42704", `unrecognized configuration parameter "my_idle_session_timeout"`, false},
		{"another object", "42704", `type "citext" does not exist`, false},
		{"a value that is not accepted", "22023", `invalid value for parameter "idle_session_timeout"`, false},
	} {
		err := tooOld(fmt.Errorf("connect: %w", &pgconn.PgError{Severity: "FATAL", Code: c.code, Message: c.message}))
		if errors.Is(err, ErrOld) != c.old || code(err) != c.code {
			t.Errorf("%s: %v; it being too old is %v", c.name, err, c.old)
		}
		err = advisoryStore{}.Unavailable("open session", false, err)
		if errors.Is(err, backend.ErrUnsupported) != c.old || errors.Is(err, backend.ErrUnavailable) == c.old {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// A request on a connection that was accepted, such as a release, is retried.
	err := advisoryStore{}.Unavailable("release", true, &pgconn.PgError{Severity: "ERROR", Code: "42704", Message: `unrecognized configuration parameter "idle_session_timeout"`})
	if !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("a release: %v", err)
	}
}

// An answer whose code is not known to pass is refused: no retry mends it.
func TestUnknownCodeIsRefused(t *testing.T) {
	t.Parallel()
	for code, refused := range map[string]bool{
		"42703": true, // a column that is not there
		"P0001": true, // a trigger of somebody
		"53300": false, "57P03": false, "40001": false, "55P03": false, "25006": false, "08006": false, "26000": false, "54000": false,
	} {
		if err := unavailable("acquire", false, &pgconn.PgError{Severity: "ERROR", Code: code}); errors.Is(err, backend.ErrRefused) != refused {
			t.Errorf("%s: %v; it being refused is %v", code, err, refused)
		}
	}
}
