package pglock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// C12: the server is gone.
func TestAdvisoryServerGone(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Postgres(t)
	proxy := chaos.Start(t, s.Addr())
	leasetest.ServerGone(t, openAdvisory(t, advisoryURL(s, "postgres", proxy.Addr())), proxy)
}

// Two names have the same key: they exclude each other, falsely, and nothing else goes wrong.
func TestAdvisoryCollision(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	b, other := openAdvisory(t, advisoryURL(s, "postgres", s.Addr())), openAdvisory(t, advisoryURL(s, "postgres", s.Addr()))
	b.Collide()
	other.Collide()
	id, theirs := leasetest.Session(t, b, time.Hour, nil), leasetest.Session(t, other, time.Hour, nil)
	one, two := leasetest.Ask("one", id), leasetest.Ask("two", id)
	leasetest.Take(t, b, one)
	leasetest.Take(t, b, two) // of the same session: it does not wait for itself
	three := leasetest.Ask("three", theirs)
	got := leasetest.Start(t, other, three)
	leasetest.InQueue(t, other, "three", 1)
	leasetest.Give(t, b, one)
	try := leasetest.Ask("two", theirs)
	try.Wait = false
	if _, err := other.Acquire(leasetest.Within(t), try); !errors.Is(err, backend.ErrHeld) {
		t.Errorf("the other lock is held still: %v", err)
	}
	select {
	case g := <-got:
		t.Fatalf("the third has it beside the second: %+v", g)
	case <-time.After(time.Second):
	}
	leasetest.Give(t, b, two)
	if g := <-got; g.Err != nil {
		t.Error(g.Err)
	}
}

// B19: a pooler may execute the next statement on another connection, which does not have the
// locks. It is refused in every mode, also where it accepts our settings.
func TestAdvisoryPoolerIsRefused(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	const settings = "ignore_startup_parameters = idle_session_timeout,client_connection_check_interval,plan_cache_mode"
	for _, mode := range []string{"session", "transaction"} {
		for _, more := range []string{"", settings} {
			var extra []string
			if more != "" {
				extra = append(extra, more)
			}
			b := openAdvisory(t, advisoryURL(s, "postgres", testserver.PgBouncer(t, s, mode, extra...)))
			err := b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
			if !errors.Is(err, pglock.ErrPooler) || !errors.Is(err, backend.ErrUnsupported) {
				t.Errorf("%s, %q: %v", mode, more, err)
			}
		}
	}
	if n := s.Int(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'`); n != 0 {
		t.Errorf("%d locks are held", n)
	}
}

// A setting of the caller's that the server does not know is not taken for an old server.
func TestAdvisoryUnknownSetting(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	conf, err := pgx.ParseConfig(s.URLOf("postgres", s.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	conf.RuntimeParams["no_such_setting"] = "1"
	b, err := pglock.NewAdvisory(pglock.AdvisoryConfig{Conn: conf})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	err = b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
	if !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, pglock.ErrOld) || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("OpenSession: %v; the error has to name the setting", err)
	}
}

// A server that accepts no writes grants no locks: a standby's are not the primary's.
func TestAdvisoryReadOnlyIsRefused(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t, "default_transaction_read_only=on")
	b := openAdvisory(t, advisoryURL(s, "postgres", s.Addr()))
	err := b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
	if !errors.Is(err, backend.ErrUnavailable) {
		t.Error(err)
	}
}
