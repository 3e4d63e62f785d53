package pglock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// fullQueue makes the server's queue of notifications full, and not full again, for connections that are made from now on. The
// queue itself has gigabytes, and refuses the commit, as the trigger does.
func fullQueue(s *testserver.PostgresServer) func(full bool) {
	s.Exec(
		`CREATE TABLE public.queue (is_full boolean NOT NULL)`, `INSERT INTO public.queue VALUES (false)`, `CREATE TABLE public.refused (channel text)`,
		`CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN RAISE EXCEPTION USING ERRCODE = ''program_limit_exceeded'', MESSAGE = ''too many notifications in the NOTIFY queue''; END'`,
		`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON public.refused DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.refuse()`,
		`ALTER FUNCTION pg_catalog.pg_notify(text, text) RENAME TO pg_notify_real`,
		`CREATE FUNCTION pg_catalog.pg_notify(text, text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS
			'BEGIN IF (SELECT is_full FROM public.queue) THEN INSERT INTO public.refused VALUES ($1); ELSE PERFORM pg_notify_real($1, $2); END IF; END'`,
		`ALTER FUNCTION pg_catalog.pg_notification_queue_usage() RENAME TO pg_notification_queue_usage_real`,
		`CREATE FUNCTION pg_catalog.pg_notification_queue_usage() RETURNS double precision LANGUAGE sql AS
			'SELECT CASE WHEN is_full THEN 1.0 ELSE 0.0 END FROM public.queue'`,
	)
	return func(full bool) {
		s.Exec(map[bool]string{true: `UPDATE public.queue SET is_full = true`, false: `UPDATE public.queue SET is_full = false`}[full])
	}
}

// B: the queue of notifications is full, because a listener of any database sleeps in a transaction. Everything works without
// notifications, and waiters poll; a watcher learns that events are missing.
func TestFullQueueOfNotifications(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Postgres(t)
	full := fullQueue(s)
	b, other := open(t, s.URL()), open(t, s.URL())
	id, theirs := leasetest.Session(t, b, leasetest.Long, nil), leasetest.Session(t, other, leasetest.Long, nil)
	const most = 15 * time.Second // without polling, a waiter sleeps for 30 s
	leasetest.Promptly(t, most, func() time.Duration {
		full(false)
		held, waits := leasetest.Ask("n", id), leasetest.Ask("n", theirs)
		leasetest.Take(t, b, held)
		got := leasetest.Start(t, other, waits)
		leasetest.InQueue(t, b, "n", 1)
		full(true)
		from := time.Now()
		leasetest.Give(t, b, held)
		if g := <-got; g.Err != nil {
			t.Fatal(g.Err)
		}
		took := time.Since(from)
		leasetest.Give(t, other, waits)
		return took
	})
	err := b.Watch(leasetest.Within(t), backend.WatchRequest{}, func(backend.Event) {})
	if !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("watch: %v", err)
	}
}

func TestAdvisoryFullQueueOfNotifications(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Postgres(t)
	full := fullQueue(s)
	url := advisoryURL(s, "postgres", s.Addr())
	b, other := openAdvisory(t, url), openAdvisory(t, url)
	id := leasetest.Session(t, b, leasetest.Long, func(x backend.Loss) {
		if x.Cause != backend.CauseBroken && x.Lease == "" {
			t.Errorf("lost: %+v", x)
		}
	})
	theirs := leasetest.Session(t, other, leasetest.Long, nil)
	held, waits := leasetest.Ask("n", id), leasetest.Ask("n", theirs)
	leasetest.Take(t, b, held)
	got := leasetest.Start(t, other, waits)
	inQueueOf(t, s, 1)
	full(true)
	leasetest.Give(t, b, held)
	if g := <-got; g.Err != nil {
		t.Fatal(g.Err)
	}
	res, err := b.Break(leasetest.Within(t), backend.BreakRequest{Name: "n"})
	if err != nil || len(res.Broken) != 1 || res.Broken[0].Lease != waits.Lease {
		t.Errorf("break: %+v, %v", res, err)
	}
	again := leasetest.Ask("n", id)
	leasetest.Take(t, b, again)
	leasetest.Give(t, b, again)
	if err := b.EndSession(leasetest.Within(t), id); err != nil {
		t.Error(err)
	}
	if n := s.Int(`SELECT count(*) FROM holdfast_advisory.sessions WHERE session = $1`, string(id)); n != 0 {
		t.Error("the session is left")
	}
}

// inQueueOf waits until n requests are in the table of waiters.
func inQueueOf(t *testing.T, s *testserver.PostgresServer, n int64) {
	t.Helper()
	leasetest.Eventually(t, "it is in the queue", func() bool { return s.Int(`SELECT count(*) FROM holdfast_advisory.waiters`) == n })
}
