package pglock_test

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// turnstile passes the answers to statements about a lease one by one.
type turnstile struct {
	lease []byte
	stuck chan struct{} // an answer has arrived and waits
	pass  chan struct{} // lets it through; closed: lets all through
}

func (s *turnstile) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &turned{Conn: conn, by: s, asked: make(chan struct{}, 1)}, err
}

type turned struct {
	net.Conn
	by    *turnstile
	asked chan struct{} // capacity 1: the next answer has to wait
}

func (c *turned) Write(b []byte) (int, error) {
	if bytes.Contains(b, c.by.lease) {
		select {
		case c.asked <- struct{}{}:
		default:
		}
	}
	return c.Conn.Write(b)
}

func (c *turned) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.asked:
		select {
		case c.by.stuck <- struct{}{}:
			<-c.by.pass
		case <-c.by.pass:
		}
	default:
	}
	return n, err
}

// C8: nothing listens when a waiter gets its lock, and there is a listener again before the value
// has read that its waiter is in the queue. The grant is not left to a timer.
func TestGrantBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	s.Exec(`CREATE ROLE victim LOGIN`, `GRANT CREATE ON DATABASE postgres TO victim`)
	victims := func(rest string) int64 {
		return s.Int(`SELECT count(*) FROM pg_stat_activity WHERE usename = 'victim' AND ` + rest)
	}
	const listens = `query LIKE 'LISTEN%' AND state = 'idle'`
	conf, err := pgx.ParseConfig(s.URLOf("victim", s.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	waits := leasetest.Ask("n", "")
	gate := &turnstile{lease: []byte(waits.Lease), stuck: make(chan struct{}), pass: make(chan struct{})}
	conf.DialFunc = gate.dial
	b, err := pglock.New(pglock.Config{Conn: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	waits.Session = leasetest.Session(t, b, time.Hour, nil)
	leasetest.Eventually(t, "it listens", func() bool { return victims(listens) == 1 })

	holder := open(t, s.URLOf("victim", s.Addr()))
	held := leasetest.Ask("n", leasetest.Session(t, holder, time.Hour, nil))
	leasetest.Take(t, holder, held)
	leasetest.Eventually(t, "both listen", func() bool { return victims(listens) == 2 })
	s.Exec(`ALTER ROLE victim NOLOGIN`)
	s.Int(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'victim' AND ` + listens)

	got := leasetest.Start(t, b, waits)
	inQueue := func() bool {
		info, err := holder.Inspect(leasetest.Within(t), "n")
		return err == nil && len(info.Waiters) == 1
	}
	for <-gate.stuck; !inQueue(); <-gate.stuck {
		gate.pass <- struct{}{}
	}
	leasetest.Give(t, holder, held)
	s.Exec(`ALTER ROLE victim LOGIN`)
	leasetest.Eventually(t, "they listen again", func() bool { return victims(listens) == 2 })
	next := leasetest.Ask("m", waits.Session)
	leasetest.Take(t, b, next) // and have a connection
	close(gate.pass)
	from := time.Now()
	select {
	case g := <-got:
		if g.Err != nil {
			t.Fatal(g.Err)
		}
	case <-time.After(leasetest.Patience):
	}
	if took := time.Since(from); took > 20*time.Second { // the timer takes 30
		t.Errorf("the grant was seen after %s", took)
	}
	leasetest.Give(t, holder, backend.AcquireRequest{Name: "n", Lease: waits.Lease, Session: waits.Session})
}
