package leasetest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// Database is how these tests change what is stored, behind the back of a backend.
type Database struct {
	Exec func(statement string)
	Int  func(query string) int64
	// Dialect replaces @ by the tables, $FUTURE and $PAST by times, $FLOOR by the column of the
	// floor, $ADDR by what follows the session of a lease, $THIN by the table with the lease of a
	// lock that was taken the short way, $INFLATE by the statement that moves the lease of $N from
	// there to the table of leases, and $BURIED by the one that makes the row of $N have tombs.
	Dialect *strings.Replacer
	// Numbers is how many numbers a lease takes the short way.
	Numbers int64
}

// aheadOfClock makes the numbers count up one by one.
const aheadOfClock = `UPDATE @meta SET $FLOOR = 4000000000000000`

// QuickConditions (C5): a state that is not as the quick statements need it is found, and
// handled the long way. In each case the state is made behind the back of the value, as other
// clients make it in the moment before the statement.
func QuickConditions(t *testing.T, b backend.Backend, s Database) {
	t.Helper()
	const (
		endSession = `UPDATE @sessions SET cause = 'session', ends = $FUTURE WHERE id = '$S'`
		cutSession = `UPDATE @sessions SET ends = $PAST WHERE id = '$S'`
		noSession  = `DELETE FROM @sessions WHERE id = '$S'`
		inQueue    = `$INFLATE;INSERT INTO @leases SELECT name, 'Lqqqqqqqqqqqqqqqqqqqqqqqqqq', session, $ADDRfalse, place + 1, mode, permits, cap, owner, note,
			false, 0, 0, asked, since, NULL, true FROM @leases WHERE name = '$N'`
	)
	Session(t, b, time.Hour, nil) // makes the tables
	s.Exec(s.Dialect.Replace(aheadOfClock))
	for _, c := range []struct {
		name    string
		timed   bool
		acquire bool // the state changes before the acquisition, otherwise before the release
		change  string
		want    error
		long    bool // there is no error, and the long way is taken
	}{
		{"acquire", false, true, "", nil, false},
		{"acquire for a time", true, true, "", nil, false},
		{"acquire under a session that was ended", false, true, endSession, backend.ErrSessionLost, false},
		{"acquire under a session that ran out", false, true, cutSession, backend.ErrSessionLost, false},
		{"acquire under no session", false, true, noSession, backend.ErrSessionLost, false},
		{
			"acquire what was abandoned", false, true,
			`$BURIED;INSERT INTO @tombs VALUES ('$N', '$L', $FUTURE)`, backend.ErrLost, false,
		},
		{
			"acquire what was abandoned long ago", false, true,
			`$BURIED;INSERT INTO @tombs VALUES ('$N', '$L', $PAST)`, nil, false,
		},
		{
			"acquire what is called like one that was abandoned", false, true,
			`$BURIED;INSERT INTO @tombs VALUES ('$N/', '$L', $FUTURE)`, nil, false,
		},
		{
			"acquire what was abandoned for another", false, true,
			`$BURIED;INSERT INTO @tombs VALUES ('$N', 'L$L', $FUTURE)`, nil, false,
		},
		{"release", false, false, "", nil, false},
		{"release under a session that was ended", false, false, endSession, backend.ErrLost, false},
		{"release under a session that ran out", false, false, cutSession, backend.ErrLost, false},
		{"release under no session", false, false, noSession, backend.ErrLost, false},
		{"release of a timed lease", true, false, "", nil, false},
		{"release of a timed lease whose session was ended", true, false, endSession, nil, false},
		{
			"release of a timed lease that ran out", true, false,
			`UPDATE @$THIN SET ends = $PAST WHERE name = '$N'`, backend.ErrLost, false,
		},
		{"release with a waiter in the queue", false, false, inQueue, nil, true},
		{"release with another name", false, false, `UPDATE @$THIN SET name = '$N/' WHERE name = '$N'`, backend.ErrLost, false},
		{"release of another lease", false, false, `UPDATE @$THIN SET lease = 'Lqqqqqqqqqqqqqqqqqqqqqqqqqq' WHERE name = '$N'`, backend.ErrLost, false},
		{"release of a place in the queue", false, false, `$INFLATE;UPDATE @leases SET held = false WHERE name = '$N'`, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := Session(t, b, time.Hour, nil)
			req := Ask(c.name, id)
			if req.Timed = c.timed; c.timed {
				req.TTL = time.Minute
			}
			change := func() {
				for q := range strings.SplitSeq(s.Dialect.Replace(c.change), ";") {
					if q != "" {
						s.Exec(strings.NewReplacer("$N", req.Name, "$L", string(req.Lease), "$S", string(id)).Replace(q))
					}
				}
			}
			last := func() int64 {
				return s.Int(s.Dialect.Replace(`SELECT coalesce(max(last), 0) FROM @locks WHERE name = '` + req.Name + `'`))
			}
			before := s.Int(s.Dialect.Replace(`SELECT $FLOOR FROM @meta`))
			took := func(short int64) { // numbers are taken the long way, and for a lease
				t.Helper()
				if long := last()-before > short; c.want == nil && long != c.long {
					t.Errorf("it took %d numbers", last()-before)
				}
			}
			if c.acquire {
				change()
				if _, err := b.Acquire(Within(t), req); !errors.Is(err, c.want) {
					t.Errorf("Acquire: %v, not %v", err, c.want)
				}
				took(s.Numbers)
				return
			}
			Take(t, b, req)
			before = last()
			change()
			defer took(0)
			err := b.Release(Within(t), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: id})
			if !errors.Is(err, c.want) {
				t.Errorf("Release: %v, not %v", err, c.want)
			}
			if c.change != inQueue {
				return
			}
			info, err := b.Inspect(Within(t), req.Name)
			if err != nil || len(info.Holders) != 1 || len(info.Waiters) != 0 {
				t.Errorf("%+v, %v; the one in the queue has to hold it now", info, err)
			}
		})
	}
}

// QuickTokenAboveFloor (C2): the row of the lock was deleted, and created again by a transaction
// that did not see yet that the floor rose.
func QuickTokenAboveFloor(t *testing.T, b backend.Backend, s Database) {
	t.Helper()
	id := Session(t, b, time.Hour, nil)
	var last fence.Token
	for range 3 {
		req := Ask("n", id)
		token := Take(t, b, req)
		floor := s.Int(s.Dialect.Replace(`SELECT $FLOOR FROM @meta`))
		if token <= last || token <= fence.Token(floor) { //nolint:gosec // it counts up from above 0
			t.Errorf("token %d after %d; the floor is %d", token, last, floor)
		}
		last = token
		Give(t, b, req)
		s.Exec(s.Dialect.Replace(`UPDATE @meta SET $FLOOR = (SELECT last + 3600000000 FROM @locks WHERE name = 'n')`))
	}
}
