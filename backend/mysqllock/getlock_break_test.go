package mysqllock_test

import (
	"database/sql"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// C10: a break meets a holder of the user lock whose row is not committed. A trigger delays the
// commit while the test holds another lock.
func TestUserLocksBreakBesideAGrant(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	victim(s) // breaks this time
	b := openUserLocks(t, getlockURL(s, "root", s.Addr()))
	other := openUserLocks(t, getlockURL(s, "victim", s.Addr()))
	if err := b.Migrate(leasetest.Within(t)); err != nil {
		t.Fatal(err)
	}
	s.Exec(
		// After the insert: its number, which is the token, is drawn.
		`CREATE TRIGGER gate AFTER INSERT ON holdfast_getlock_leases FOR EACH ROW IF NEW.name = 'n' THEN DO GET_LOCK('gate', 60), RELEASE_LOCK('gate'); END IF`,
		`SET GLOBAL log_output = 'TABLE'`, `SET GLOBAL general_log = ON`,
	)
	db, err := sql.Open("mysql", s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	gate, err := db.Conn(leasetest.Within(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = gate.Close() })
	do := func(query string) func() {
		return func() {
			if _, err := gate.ExecContext(leasetest.Within(t), query); err != nil {
				t.Fatal(err)
			}
		}
	}
	leasetest.BreakBesideAGrant(t, b, other, leasetest.Gate{
		Shut: do(`DO GET_LOCK('gate', 60)`), Open: do(`DO RELEASE_LOCK('gate')`),
		Reached: func() bool {
			return s.Int(`SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'`) == 1
		},
		Asked: func() int64 {
			return s.Int(`SELECT COUNT(*) FROM mysql.general_log WHERE user_host LIKE 'victim%' AND command_type IN ('Query', 'Execute')`)
		},
	})
}
