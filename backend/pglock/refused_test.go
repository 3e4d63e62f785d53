package pglock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// B: with sslmode=prefer, the first attempt to connect fails for want of TLS, and the second for a reason that passes, or for one that
// stays. The latter decides.
func TestRefusedWithoutTLS(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t, "max_connections=10", "superuser_reserved_connections=3")
	s.Exec(`CREATE ROLE app LOGIN`)
	judge := func(what, user, database, mode string, refused bool, remedy string) {
		t.Helper()
		url := strings.NewReplacer("/postgres?", "/"+database+"?", "sslmode=disable", "sslmode="+mode).Replace(s.URLOf(user, s.Addr()))
		err := open(t, url).OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
		if !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrRefused) != refused || refused && !strings.Contains(err.Error(), remedy) {
			t.Errorf("%s: %v; want it to be refused: %v", what, err, refused)
		}
	}
	judge("a database that does not exist", "app", "nothing", "prefer", true, "name a database that exists")
	judge("a role that does not exist", "nobody", "postgres", "prefer", true, "correct the role")
	judge("no TLS", "app", "postgres", "require", true, "turn ssl on")
	for range 7 {
		conn, err := pgx.Connect(leasetest.Within(t), s.URLOf("app", s.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(t.Context()) }()
	}
	judge("no connection is free", "app", "postgres", "prefer", false, "")
	s.Demote()
	judge("a standby", "app", "postgres", "prefer", false, "")
}
