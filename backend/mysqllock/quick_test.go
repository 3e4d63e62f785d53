package mysqllock_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/sqllease"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

const now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

// As the store does it, for the lock $N.
const (
	inflate = `UPDATE test.holdfast_locks SET fat = 1 WHERE name = '$N';INSERT INTO test.holdfast_leases SELECT name, lease, session, true, token, mode, permits, cap, owner, note,
		timed, ttl, token, since, since, ends, false FROM test.holdfast_locks WHERE name = '$N'`
	bury = `INSERT INTO test.holdfast_locks (name, last, used, buried) SELECT '$N', last_floor, ` + now + `, ` + now + ` + 3600000000 FROM test.holdfast_meta`
)

// database returns what the tests of the quick statements need of a server.
func database(s *testserver.MariaDBServer) leasetest.Database {
	return leasetest.Database{
		Exec:    func(q string) { s.Exec(q) },
		Int:     func(q string) int64 { return s.Int(q) },
		Numbers: 1,
		Dialect: strings.NewReplacer("$INFLATE", inflate, "$BURIED", bury, "$THIN", "locks", "@", "test.holdfast_", "$FUTURE", now+" + 3600000000", "$PAST", now+" - 3600000000", "$FLOOR", "last_floor", "$ADDR", ""),
	}
}

// Where the conditions of the quick statements do not hold, that is found, and the long way
// taken.
func TestQuickConditions(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	b := open(t, s.URL())
	b.KeepFromSweeping()
	leasetest.QuickConditions(t, b, database(s))
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
		req := leasetest.Ask("n", id) // makes the row, or finds that it is not contended any more
		leasetest.Take(t, b, req)
		leasetest.Give(t, b, req)
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
				leasetest.Take(t, b, req)
				leasetest.Give(t, b, req)
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

func TestQuickTokenAboveFloor(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	d := database(s)
	exec := d.Exec
	d.Exec = func(q string) { exec(q); exec("UPDATE test.holdfast_locks SET last = 0") } // the row that was created again
	leasetest.QuickTokenAboveFloor(t, open(t, s.URL()), d)
}

// A lease that is held is not granted once more, also by a value that knows nothing of it. A
// repeated request gets the same token, the present time left of a timed lease, and ErrLost under
// another session.
func TestQuickAskedAgain(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	one, two := open(t, s.URL()), open(t, s.URL())
	id, other := leasetest.Session(t, one, time.Hour, nil), leasetest.Session(t, two, time.Hour, nil)
	req := leasetest.Ask("n", id)
	token := leasetest.Take(t, one, req)
	for _, b := range []backend.Backend{one, two, one} {
		if again := leasetest.Take(t, b, req); again != token {
			t.Errorf("token %d, and then %d", token, again)
		}
	}
	mine := leasetest.Ask("mine", id)
	leasetest.Take(t, one, mine)
	mine.Session = other
	if _, err := two.Acquire(leasetest.Within(t), mine); !errors.Is(err, backend.ErrLost) {
		t.Errorf("under another session: %v", err)
	}
	timed := leasetest.Ask("timed", id)
	timed.Timed, timed.TTL = true, time.Hour
	leasetest.Take(t, one, timed)
	s.Exec("UPDATE test.holdfast_locks SET ends = " + now + " + 120000000 WHERE name = 'timed'")
	if g, err := two.Acquire(leasetest.Within(t), timed); err != nil || g.Left > 2*time.Minute {
		t.Errorf("%+v, %v; at most two minutes are left", g, err)
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
	leasetest.Give(t, b, taken(t, b)) // the tables exist
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

// taken acquires a lock.
func taken(t *testing.T, b backend.Backend) backend.AcquireRequest {
	t.Helper()
	req := backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: time.Minute}
	leasetest.Take(t, b, req)
	return req
}

// B12: a waiter for what is held under a session of the same value learns of its release here,
// and polls rarely.
func TestLooksBehindOwnHolder(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	b, other := open(t, s.URL()), open(t, s.URL())
	b.KeepFromSweeping()
	other.KeepFromSweeping()
	mine, theirs := leasetest.Session(t, b, time.Hour, nil), leasetest.Session(t, other, time.Hour, nil)
	held := leasetest.Ask("n", mine)
	leasetest.Take(t, b, held)
	next, last := leasetest.Ask("n", theirs), leasetest.Ask("n", mine)
	first := leasetest.Ask("n", mine)
	gotFirst := leasetest.Start(t, b, first)
	leasetest.InQueue(t, b, "n", 1)
	selects := func() int64 {
		return s.Int("SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'COM_SELECT'")
	}
	before, from := selects(), time.Now()
	time.Sleep(time.Second)
	n := selects() - before
	if looks, most := n/3, int64(4*time.Since(from)/time.Second)+4; looks > most {
		t.Errorf("%d looks in %s, not %d", looks, time.Since(from), most)
	}
	// To another value, and back: that is found.
	gotNext := leasetest.Start(t, other, next)
	leasetest.InQueue(t, b, "n", 2)
	gotLast := leasetest.Start(t, b, last)
	leasetest.InQueue(t, b, "n", 3)
	leasetest.Give(t, b, held)
	for _, x := range []struct {
		got <-chan leasetest.Answer
		b   backend.Backend
		req backend.AcquireRequest
	}{{gotFirst, b, first}, {gotNext, other, next}, {gotLast, b, last}} {
		if g := <-x.got; g.Err != nil {
			t.Fatal(g.Err)
		}
		leasetest.Give(t, x.b, x.req)
	}
}

// C3: of a long queue only the front is read.
func TestLongQueue(t *testing.T) {
	t.Parallel()
	s := testserver.MariaDB(t)
	leasetest.LongQueue(t, open(t, s.URL()), open(t, s.URL()))
}

// C8: a waiter that dies in a long queue delays the others no longer than its TTL.
func TestDeadInLongQueue(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.MariaDB(t)
	proxy := chaos.Start(t, s.Addr())
	b, other := open(t, s.URL()), open(t, s.URLOf("root", proxy.Addr()))
	b.KeepFromSweeping()
	t.Cleanup(proxy.Heal) // before they are closed
	leasetest.DeadInLongQueue(t, b, other, proxy.BlackHole)
}
