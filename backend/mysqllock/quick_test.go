package mysqllock_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/sqllease"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// pairOf acquires a lock and releases it.
func pairOf(t *testing.T, b backend.Backend, req backend.AcquireRequest) {
	t.Helper()
	leasetest.Take(t, b, req)
	leasetest.Give(t, b, req)
}

// B12: an uncontended lock costs one statement that decides, in one round trip and without BEGIN, each
// way. A lock that was contended is that cheap again when it is free.
func TestOneRoundTripForFreeLocks(t *testing.T) {
	t.Parallel()
	const pairs = 20
	s := testserver.MariaDB(t)
	b := open(t, s.URL())
	b.KeepFromSweeping()
	id := leasetest.Session(t, b, time.Hour, nil)
	count := func(what string) int64 {
		return s.Int("SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = '" + what + "'")
	}
	for round := range 2 {
		pairOf(t, b, leasetest.Ask("n", id))                         // makes the row, or finds that it is not contended any more
		s.Exec("UPDATE holdfast_locks SET last = last + 3600000000") // ahead of the clock, it counts up one by one
		var numbers, begun, updates int64
		for range 3 { // a request may be repeated after a stall
			began := time.Now()
			numbers, begun, updates = s.Int("SELECT last FROM test.holdfast_locks"), count("COM_BEGIN"), count("COM_UPDATE")
			for i := range pairs {
				req := leasetest.Ask("n", id)
				if i%2 == 0 { // with an end of its own, and under no session
					req = backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute}
				}
				pairOf(t, b, req)
			}
			numbers, begun, updates = s.Int("SELECT last FROM test.holdfast_locks")-numbers, count("COM_BEGIN")-begun, count("COM_UPDATE")-updates
			if time.Since(began) < 5*time.Second || numbers == pairs && begun == 0 && updates == 2*pairs {
				break
			}
		}
		if numbers != pairs {
			t.Errorf("round %d: %d pairs took %d numbers", round, pairs, numbers)
		}
		if begun != 0 || updates != 2*pairs {
			t.Errorf("round %d: %d pairs took %d transactions with BEGIN, and %d updates", round, pairs, begun, updates)
		}
		// Contended, and free again.
		held, waits := leasetest.Ask("n", id), leasetest.Ask("n", id)
		leasetest.Take(t, b, held)
		got := leasetest.Start(t, b, waits)
		leasetest.InQueue(t, b, "n", 1)
		leasetest.Give(t, b, held)
		if g := <-got; g.Err != nil {
			t.Fatal(g.Err)
		}
		leasetest.Give(t, b, waits)
	}
}

// Leases of many locks are released in one statement, by their IDs. Leases with the same ID on
// different locks are kept apart all the same. One that is not held is not released with the
// others.
func TestSameIDOnManyLocks(t *testing.T) {
	t.Parallel()
	b := open(t, testserver.MariaDB(t).URL())
	id := leasetest.Session(t, b, time.Hour, nil)
	const locks = 48
	one := leasetest.Ask("", id)
	for round := range 3 {
		var all sync.WaitGroup
		errs := make([]error, 2*locks)
		for i := range locks {
			req := one
			req.Name = fmt.Sprint("n", i)
			leasetest.Take(t, b, req)
		}
		for i := range 2 * locks { // the second half never existed
			all.Go(func() {
				errs[i] = b.Release(t.Context(), backend.ReleaseRequest{Name: fmt.Sprint("n", i), Lease: one.Lease, Session: id})
			})
		}
		all.Wait()
		for i, err := range errs {
			if lost := errors.Is(err, backend.ErrLost); err != nil && !lost || lost != (i >= locks) {
				t.Errorf("round %d: lock %d: %v", round, i, err)
			}
		}
		page, err := b.List(t.Context(), backend.ListRequest{})
		if err != nil || len(page.Locks) != 0 {
			t.Errorf("round %d: %d locks are left, %v", round, len(page.Locks), err)
		}
	}
}

// As many as go together, in which nothing is the same, are granted as they were requested. Only
// those that are held are released, including the last one.
func TestQuickTogether(t *testing.T) {
	t.Parallel()
	b := open(t, testserver.MariaDB(t).URL())
	sessions := []backend.SessionID{leasetest.Session(t, b, time.Hour, nil), leasetest.Session(t, b, time.Hour, nil)}
	ask := func(i int) sqllease.LeaseRow {
		row := sqllease.LeaseRow{
			Name: fmt.Sprintf("%02d", i), Lease: backend.NewLeaseID(), Session: sessions[i%2], Held: true, Note: fmt.Sprint("note ", i),
			Owner: fmt.Sprint("owner ", i), Claim: backend.Claim{Mode: backend.Exclusive, Permits: 1, Limit: 1},
		}
		if i%3 == 0 {
			row.Claim.Mode, row.Claim.Permits, row.Claim.Limit = backend.Shared, 1+i, 100+i
		}
		if i%5 == 0 {
			row.Timed, row.TTL = true, time.Duration(i+60)*time.Minute
		}
		return row
	}
	take, give := new(sqllease.Quick), new(sqllease.Quick)
	for i := range mysqllock.MaxQuick {
		row := ask(i)
		take.Acquire, give.Release = append(take.Acquire, row), append(give.Release, sqllease.Key{Name: row.Name, ID: row.Lease})
	}
	pairOf(t, b, backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute}) // the tables exist
	if err := b.Quick(leasetest.Within(t), take); err != nil || len(take.Granted) != mysqllock.MaxQuick {
		t.Fatalf("%d were granted: %v", len(take.Granted), err)
	}
	for _, row := range take.Acquire {
		info, err := b.Inspect(leasetest.Within(t), row.Name)
		if err != nil || len(info.Holders) != 1 {
			t.Fatalf("%s: %+v, %v", row.Name, info, err)
		}
		h, least := info.Holders[0], time.Duration(0)
		if row.Timed {
			row.Session, least = "", row.TTL-time.Minute
		}
		if h.Lease != row.Lease || h.Session != row.Session || h.Owner != row.Owner || h.Note != row.Note || h.Mode != row.Claim.Mode ||
			h.Permits != row.Claim.Permits || row.Claim.Mode == backend.Shared && info.Limit != row.Claim.Limit ||
			row.Timed && (h.Left > row.TTL || h.Left < least) {
			t.Errorf("%+v was asked for; it is %+v, of at most %d", row, h, info.Limit)
		}
	}
	if err := b.Quick(leasetest.Within(t), give); err != nil || len(give.Released) != mysqllock.MaxQuick {
		t.Fatalf("%d leases were released: %v", len(give.Released), err)
	}
	last := take.Acquire[mysqllock.MaxQuick-1:]
	again, back := &sqllease.Quick{Acquire: last}, &sqllease.Quick{Release: give.Release}
	if err := b.Quick(leasetest.Within(t), again); err != nil || len(again.Granted) != 1 {
		t.Fatalf("%+v: %v", again.Granted, err)
	}
	if err := b.Quick(leasetest.Within(t), back); err != nil || len(back.Released) != 1 || back.Released[0] != last[0].Name {
		t.Errorf("%q were released, not the only held lease: %v", back.Released, err)
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
	commit := begin(t, s, `UPDATE holdfast_sessions SET ends = ends + 1`, `UPDATE holdfast_meta SET last_floor = last_floor + 1`, `UPDATE holdfast_tombs SET expires = expires + 1`)
	_, before := rowWaits(s)
	for _, name := range []string{"new", "new", "n", "n"} { // twice: then it is known
		pairOf(t, b, leasetest.Ask(name, id))
	}
	if _, after := rowWaits(s); after != before {
		t.Errorf("%d statements waited for rows", after-before)
	}
	commit()
}

// A lock whose leases were abandoned is free for others, in one round trip each way.
func TestThinWithTombs(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	b, other := open(t, s.URL()), open(t, s.URL())
	b.KeepFromSweeping()
	other.KeepFromSweeping()
	id, theirs := leasetest.Session(t, b, time.Hour, nil), leasetest.Session(t, other, time.Hour, nil)
	pair := func(b backend.Backend, id backend.SessionID) { pairOf(t, b, leasetest.Ask("n", id)) }
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
