package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// F11: where commits wait for a standby, no answer rests on what the standby may not have. A
// grant whose commit was interrupted while it waited is visible to every client, and the standby
// that takes over may not know of it: a retry waits for the standby as well.
func TestGrantsWaitForTheStandby(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	b := open(t, s.URL()+"&listen=false") // nothing is tried in one round trip first
	id := leasetest.Session(t, b, time.Hour, nil)
	standbyIsAway(t, s)
	req := leasetest.Ask("n", id)
	got := make(chan leasetest.Answer, 1)
	go func() {
		g, err := leasetest.Insist(t, func(ctx context.Context) (backend.Grant, error) { return b.Acquire(ctx, req) })
		got <- leasetest.Answer{Grant: g, Err: err}
	}()
	var first int64
	leasetest.Eventually(t, "the commit waits", func() bool {
		first = s.Int(`SELECT coalesce(max(pid), 0) ` + waiting)
		return first != 0
	})
	s.Int(`SELECT pg_terminate_backend($1)::int`, first)
	leasetest.Eventually(t, "who asks again waits, too", func() bool {
		select {
		case g := <-got:
			t.Fatalf("granted while no standby has it: %+v", g)
		default:
		}
		return s.Int(`SELECT count(*) `+waiting+` AND pid <> $1`, first) == 1
	})
	s.Exec(`ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`)
	if g := <-got; g.Err != nil {
		t.Error(g.Err)
	}
}

// waiting selects the connections whose commit waits for a standby.
const waiting = `FROM pg_stat_activity WHERE wait_event = 'SyncRep'`

// standbyIsAway makes commits wait for a standby, which never arrives. The server shows the
// setting before its processes apply it: so the test waits until one commit waits.
func standbyIsAway(t *testing.T, s *testserver.PostgresServer) {
	t.Helper()
	s.Exec(`CREATE TABLE IF NOT EXISTS probe (n integer)`, `ALTER SYSTEM SET synchronous_standby_names = 'away'`, `SELECT pg_reload_conf()`)
	waited := false
	for !waited {
		over := make(chan struct{})
		go func() {
			defer close(over)
			s.Exec(`INSERT INTO probe VALUES (1)`)
		}()
		leasetest.Eventually(t, "a commit has ended, or waits for the standby", func() bool {
			select {
			case <-over:
				return true
			default:
				waited = s.Int(`SELECT count(*) `+waiting) > 0
				return waited
			}
		})
		if waited {
			s.Int(`SELECT count(pg_cancel_backend(pid)) ` + waiting)
		}
		<-over
	}
}

// F11: a lock is handed over by a commit whose wait for the standby was interrupted. The waiter
// can see its grant, in a notification or in the table, and does not get it before the standby
// has it.
func TestHandOversWaitForTheStandby(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	for _, deaf := range []string{"", "&listen=false"} {
		holder, b := open(t, s.URL()+deaf+"&application_name=holder"), open(t, s.URL()+deaf)
		holder.KeepFromSweeping()
		b.KeepFromSweeping()
		mine, theirs := leasetest.Session(t, holder, time.Hour, nil), leasetest.Session(t, b, time.Hour, nil)
		held := leasetest.Ask("n"+deaf, mine)
		leasetest.Take(t, holder, held)
		got := leasetest.Start(t, b, leasetest.Ask("n"+deaf, theirs))
		leasetest.InQueue(t, holder, "n"+deaf, 1)
		standbyIsAway(t, s)
		released := make(chan error, 1)
		go func() { // to abandon it takes one commit; otherwise an attempt in one round trip comes first
			released <- holder.Release(leasetest.Within(t), backend.ReleaseRequest{Name: held.Name, Lease: held.Lease, Session: mine, Abandon: true})
		}()
		leasetest.Eventually(t, "the commit of the release waits, and is told not to", func() bool { // as by statement_timeout: it succeeds, with a warning
			return s.Int(`SELECT count(pg_cancel_backend(pid)) `+waiting+` AND application_name = 'holder'`) > 0
		})
		if err := <-released; !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("Release was answered with %v while no standby has it", err)
		}
		leasetest.Eventually(t, "the waiter waits for the standby", func() bool {
			select {
			case g := <-got:
				t.Fatalf("told while no standby has it: %+v", g)
			default:
			}
			return s.Int(`SELECT count(*) `+waiting+` AND application_name <> 'holder'`) > 0
		})
		s.Exec(`ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`)
		if g := <-got; g.Err != nil || !g.Grant.Waited {
			t.Errorf("the waiter: %+v", g)
		}
	}
}

// C1: the settings make a primary read-only, as before a switchover. Connections to it stay, and
// nothing is granted over them any more.
func TestPrimaryMadeReadOnly(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	for _, deaf := range []string{"", "&listen=false"} {
		b := open(t, s.URL()+deaf)
		b.KeepFromSweeping()
		id := leasetest.Session(t, b, time.Hour, nil)
		leasetest.Take(t, b, leasetest.Ask("kept"+deaf, id))
		s.Exec(`ALTER SYSTEM SET default_transaction_read_only = on`, `SELECT pg_reload_conf()`)
		setting := func(want string) func() bool {
			return func() bool {
				return s.Int(`SELECT count(*) FROM pg_settings WHERE name = 'default_transaction_read_only' AND setting = $1`, want) == 1
			}
		}
		leasetest.Eventually(t, "it is read-only", setting("on"))
		if g, err := b.Acquire(leasetest.Within(t), leasetest.Ask("n"+deaf, id)); !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("granted by a read-only server: %+v, %v", g, err)
		}
		s.Exec(`ALTER SYSTEM RESET default_transaction_read_only`, `SELECT pg_reload_conf()`)
		leasetest.Eventually(t, "it is not", setting("off"))
		if res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id}); err != nil || res.SessionLost {
			t.Errorf("Renew: %+v, %v", res, err)
		}
	}
}
