package pglock

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
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
