package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestThin(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	b, other := open(t, s.URL()), open(t, s.URL())
	b.KeepFromSweeping()
	other.KeepFromSweeping()
	leasetest.Thin(t, b, other, leasetest.Forms{
		Thin:    func() int64 { return s.Int(`SELECT count(*) FROM holdfast_locks WHERE lease <> '' AND fat = 0`) },
		Fat:     func() int64 { return s.Int(`SELECT count(*) FROM holdfast_leases`) },
		OldRows: func() { s.Exec(`UPDATE holdfast_locks SET used = used - 3600000000`) },
		Sweep:   func(ctx context.Context) { other.Sweep(ctx, time.Minute) },
	})
}

// rowWaits returns how many statements wait for a row, and how many have waited until now.
func rowWaits(s *testserver.MariaDBServer) (int64, int64) {
	const status = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = "
	return s.Int(status + "'INNODB_ROW_LOCK_CURRENT_WAITS'"), s.Int(status + "'INNODB_ROW_LOCK_WAITS'")
}

// begin begins a transaction with these statements. The caller commits it.
func begin(t *testing.T, s *testserver.MariaDBServer, statements ...string) *sql.Tx {
	t.Helper()
	db, err := sql.Open("mysql", s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.BeginTx(leasetest.Within(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range statements {
		if _, err := tx.ExecContext(leasetest.Within(t), q); err != nil {
			t.Fatal(err)
		}
	}
	return tx
}

// meanwhile runs the statements in a transaction that holds the row, while call waits for it. It returns
// the error of the call.
func meanwhile(t *testing.T, s *testserver.MariaDBServer, call func() error, statements ...string) error {
	t.Helper()
	tx := begin(t, s, statements...)
	done := make(chan error, 1)
	go func() { done <- call() }()
	leasetest.Eventually(t, "it waits", func() bool { now, _ := rowWaits(s); return now > 0 })
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return <-done
}

// A statement waits for the row of the lock, and sees of the row what is committed then. It does so
// whether its value knows the row or makes sure that there is one.
func TestThinWaitsForTheRow(t *testing.T) {
	t.Parallel()
	const (
		row   = ` WHERE name = 'n'`
		other = "Lqqqqqqqqqqqqqqqqqqqqqqqqqq"
	)
	for kind, known := range map[string]bool{"known": true, "unknown": false} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := testserver.MariaDB(t)
			b := open(t, s.URL())
			b.KeepFromSweeping()
			id := leasetest.Session(t, b, time.Hour, nil)
			free := func(t *testing.T) backend.AcquireRequest { // the row exists
				t.Helper()
				s.Exec(`DELETE FROM holdfast_leases`, `UPDATE holdfast_locks SET lease = '', fat = 0, buried = 0`)
				for range 2 { // the first may find that the lock is not contended any more
					req := leasetest.Ask("n", id)
					leasetest.Take(t, b, req)
					leasetest.Give(t, b, req)
				}
				return leasetest.Ask("n", id)
			}
			acquire := func(req backend.AcquireRequest) func() error {
				by := b
				if !known {
					by = open(t, s.URL())
					by.KeepFromSweeping()
					leasetest.Session(t, by, time.Hour, nil)
				}
				return func() error {
					_, err := by.Acquire(leasetest.Within(t), req)
					return err
				}
			}
			isHeld := func(t *testing.T, by string) {
				t.Helper()
				info, err := b.Inspect(leasetest.Within(t), "n")
				if err != nil || len(info.Holders) != 1 || string(info.Holders[0].Lease) != by {
					t.Errorf("Inspect: %+v, %v", info, err)
				}
			}

			req := free(t) // a waiter comes
			leasetest.Take(t, b, req)
			err := meanwhile(t, s, func() error {
				return b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: "n", Lease: req.Lease, Session: id})
			}, `UPDATE holdfast_locks SET fat = 1, last = last + 64`+row,
				`INSERT INTO holdfast_leases SELECT name, lease, session, true, token, mode, permits, cap, owner, note, timed, ttl, token, since, since, ends, false FROM holdfast_locks`+row,
				`INSERT INTO holdfast_leases SELECT name, '`+other+`', session, false, last, mode, permits, cap, owner, note, timed, ttl, 0, since, since, NULL, true FROM holdfast_locks`+row)
			if err != nil {
				t.Errorf("release: %v", err)
			}
			isHeld(t, other)

			req = free(t) // another lease is granted
			req.Wait = false
			err = meanwhile(t, s, acquire(req), `UPDATE holdfast_locks SET last = last + 1, token = last, lease = '`+other+`', session = '`+string(id)+`'`+row)
			if !errors.Is(err, backend.ErrHeld) {
				t.Errorf("acquire of a lock that was taken meanwhile: %v", err)
			}
			isHeld(t, other)

			req = free(t) // the lease is abandoned
			err = meanwhile(t, s, acquire(req), `UPDATE holdfast_locks SET buried = `+now+` + 3600000000`+row,
				`INSERT INTO holdfast_tombs VALUES ('n', '`+string(req.Lease)+`', `+now+` + 3600000000)`)
			if !errors.Is(err, backend.ErrLost) {
				t.Errorf("acquire of what was abandoned meanwhile: %v", err)
			}

			req = free(t) // the row is swept, and is made again by a client that did not see the floor
			token := int64(leasetest.Take(t, b, req))
			leasetest.Give(t, b, req)
			err = meanwhile(t, s, acquire(leasetest.Ask("n", id)), `UPDATE holdfast_meta SET last_floor = (SELECT last + 3600000000 FROM holdfast_locks`+row+`)`,
				`DELETE FROM holdfast_locks`+row, `INSERT INTO holdfast_locks (name, last, used) VALUES ('n', 0, `+now+`)`)
			info, err2 := b.Inspect(leasetest.Within(t), "n")
			if err != nil || err2 != nil || int64(info.Token) <= token+time.Hour.Microseconds() {
				t.Errorf("%v; %+v, %v; the floor is an hour of microseconds above %d", err, info, err2, token)
			}
			if len(info.Holders) == 1 {
				leasetest.Give(t, b, backend.AcquireRequest{Name: "n", Lease: info.Holders[0].Lease, Session: id})
			}

			req = free(t) // the row is swept
			err = meanwhile(t, s, acquire(req), `UPDATE holdfast_meta SET last_floor = (SELECT last + 3600000000 FROM holdfast_locks`+row+`)`, `DELETE FROM holdfast_locks`+row)
			info, err2 = b.Inspect(leasetest.Within(t), "n")
			if floor := s.Int(`SELECT last_floor FROM holdfast_meta`); err != nil || err2 != nil || int64(info.Token) <= floor {
				t.Errorf("%v; %+v, %v; the floor is %d", err, info, err2, floor)
			}
		})
	}
}

// The statements of a free lock wait for no row but its own: neither for that of the session, which
// is being renewed, nor for the floor or the tombs.
func TestThinWaitsForNothingElse(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	b := open(t, s.URL())
	b.KeepFromSweeping()
	id := leasetest.Session(t, b, time.Hour, nil)
	s.Exec(`INSERT INTO holdfast_tombs VALUES ('n', 'x', `+now+` + 3600000000)`, `INSERT INTO holdfast_locks (name, last, used, buried) SELECT 'n', last_floor, 0, `+now+` + 3600000000 FROM holdfast_meta`)
	tx := begin(t, s, `UPDATE holdfast_sessions SET ends = ends + 1`, `UPDATE holdfast_meta SET last_floor = last_floor + 1`, `UPDATE holdfast_tombs SET expires = expires + 1`)
	_, before := rowWaits(s)
	for _, name := range []string{"new", "new", "n", "n"} { // twice: then it is known
		req := leasetest.Ask(name, id)
		leasetest.Take(t, b, req)
		leasetest.Give(t, b, req)
	}
	if _, after := rowWaits(s); after != before {
		t.Errorf("%d statements waited for rows", after-before)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// A lock whose leases were abandoned is free for others, in one round trip each way.
func TestThinWithTombs(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	b, other := open(t, s.URL()), open(t, s.URL())
	b.KeepFromSweeping()
	other.KeepFromSweeping()
	id, theirs := leasetest.Session(t, b, time.Hour, nil), leasetest.Session(t, other, time.Hour, nil)
	pair := func(b backend.Backend, id backend.SessionID) {
		req := leasetest.Ask("n", id)
		leasetest.Take(t, b, req)
		leasetest.Give(t, b, req)
	}
	pair(b, id)
	pair(other, theirs)
	late := leasetest.Ask("n", id)
	if err := b.Release(leasetest.Within(t), backend.ReleaseRequest{Name: "n", Lease: late.Lease, Session: id, Abandon: true}); err != nil {
		t.Fatal(err)
	}
	pair(other, theirs)                                          // learns of the tomb
	s.Exec("UPDATE holdfast_locks SET last = last + 3600000000") // ahead of the clock, it counts up one by one
	last := func() int64 { return s.Int("SELECT last FROM holdfast_locks") }
	before := last()
	for range 3 {
		pair(b, id)
		pair(other, theirs)
	}
	if n := last() - before; n != 6 {
		t.Errorf("6 pairs took %d numbers: not all took the short way", n)
	}
	for _, b := range []backend.Backend{b, other} {
		if _, err := b.Acquire(leasetest.Within(t), late); !errors.Is(err, backend.ErrLost) {
			t.Errorf("acquire of what was abandoned: %v", err)
		}
	}
}
