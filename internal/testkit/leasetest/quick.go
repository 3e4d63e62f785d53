package leasetest

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// What happens to the lock $N behind the back of a backend.
const (
	waiterComes = `$INFLATE;UPDATE @locks SET last = last + 64 WHERE name = '$N';INSERT INTO @leases SELECT name, '` + stranger + `', session, $ADDRfalse, place + 1,
		mode, permits, cap, owner, note, false, 0, 0, asked, since, NULL, true FROM @leases WHERE name = '$N'`
	stranger   = "Lqqqqqqqqqqqqqqqqqqqqqqqqqq"
	hasTombs   = `INSERT INTO @locks (name, last, used, buried) SELECT '$N', $FLOOR, $NOW, $NOW + $HOUR FROM @meta;`
	endSession = `UPDATE @sessions SET cause = 'session', ends = $NOW + $HOUR WHERE id = '$S'`
	cutSession = `UPDATE @sessions SET ends = $NOW - $HOUR WHERE id = '$S'`
	abandoned  = `INSERT INTO @tombs VALUES ('$N', '$L', $NOW + $HOUR)`
	// swept deletes the row of the lock, and has the floor rise by an hour of microseconds.
	swept = `UPDATE @meta SET $FLOOR = (SELECT last + 3600000000 FROM @locks WHERE name = '$N');DELETE FROM @locks WHERE name = '$N'`
)

// quickConditions (C5): a state that is not as the quick statements need it is found, and
// handled the long way. In each case the state is made behind the back of the value, as other
// clients make it in the moment before the statement.
func quickConditions(t *testing.T, s *Tables) {
	t.Helper()
	const noSession = `DELETE FROM @sessions WHERE id = '$S'`
	b := s.open()
	Session(t, b, time.Hour, nil)                                          // makes the tables
	s.Exec(s.script(`UPDATE @meta SET $FLOOR = 4000000000000000`, nil)...) // ahead of the clock: the numbers count up one by one
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
		{"acquire what was abandoned", false, true, hasTombs + abandoned, backend.ErrLost, false},
		{"acquire what was abandoned long ago", false, true, hasTombs + `INSERT INTO @tombs VALUES ('$N', '$L', $NOW - $HOUR)`, nil, false},
		{"acquire what is called like one that was abandoned", false, true, hasTombs + `INSERT INTO @tombs VALUES ('$N/', '$L', $NOW + $HOUR)`, nil, false},
		{"acquire what was abandoned for another", false, true, hasTombs + `INSERT INTO @tombs VALUES ('$N', 'L$L', $NOW + $HOUR)`, nil, false},
		{"release", false, false, "", nil, false},
		{"release under a session that was ended", false, false, endSession, backend.ErrLost, false},
		{"release under a session that ran out", false, false, cutSession, backend.ErrLost, false},
		{"release under no session", false, false, noSession, backend.ErrLost, false},
		{"release of a timed lease", true, false, "", nil, false},
		{"release of a timed lease whose session was ended", true, false, endSession, nil, false},
		{"release of a timed lease that ran out", true, false, `UPDATE @locks SET ends = $NOW - $HOUR WHERE name = '$N'`, backend.ErrLost, false},
		{"release with a waiter in the queue", false, false, waiterComes, nil, true},
		{"release with another name", false, false, `UPDATE @locks SET name = '$N/' WHERE name = '$N'`, backend.ErrLost, false},
		{"release of another lease", false, false, `UPDATE @locks SET lease = '` + stranger + `' WHERE name = '$N'`, backend.ErrLost, false},
		{"release of a place in the queue", false, false, `$INFLATE;UPDATE @leases SET held = false WHERE name = '$N'`, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := Session(t, b, time.Hour, nil)
			req := Ask(c.name, id)
			if req.Timed = c.timed; c.timed {
				req.TTL = time.Minute
			}
			last := func() int64 {
				return s.int(`SELECT coalesce(max(last), 0) FROM @locks WHERE name = '` + req.Name + `'`)
			}
			before := s.int(`SELECT $FLOOR FROM @meta`)
			took := func(short int64) { // numbers are taken the long way, and for a lease
				t.Helper()
				if long := last()-before > short; c.want == nil && long != c.long {
					t.Errorf("it took %d numbers", last()-before)
				}
			}
			if c.acquire {
				s.Exec(s.script(c.change, &req)...)
				if _, err := b.Acquire(Within(t), req); !errors.Is(err, c.want) {
					t.Errorf("Acquire: %v, not %v", err, c.want)
				}
				took(1)
				return
			}
			Take(t, b, req)
			before = last()
			s.Exec(s.script(c.change, &req)...)
			defer took(0)
			err := b.Release(Within(t), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: id})
			if !errors.Is(err, c.want) {
				t.Errorf("Release: %v, not %v", err, c.want)
			}
			if c.change != waiterComes {
				return
			}
			info, err := b.Inspect(Within(t), req.Name)
			if err != nil || len(info.Holders) != 1 || len(info.Waiters) != 0 {
				t.Errorf("%+v, %v; the one in the queue has to hold it now", info, err)
			}
		})
	}
}

// sessionNeverRevives (C5): a session that has ended or expired is neither renewed nor opened, also where no client has noticed it.
func sessionNeverRevives(t *testing.T, s *Tables) {
	t.Helper()
	b := s.open()
	for what, change := range map[string]string{"ran out": cutSession, "was ended": endSession} {
		req := Ask("n", Session(t, b, Long, nil))
		s.Exec(s.script(change, &req)...)
		res, err := b.Renew(Within(t), backend.RenewRequest{Session: req.Session})
		if err != nil || !res.SessionLost {
			t.Errorf("renewal of a session that %s: %+v, %v", what, res, err)
		}
		if err := b.OpenSession(Within(t), backend.SessionRequest{ID: req.Session, TTL: time.Hour}); !errors.Is(err, backend.ErrSessionLost) {
			t.Errorf("opening a session that %s: %v", what, err)
		}
		if n := s.int(`SELECT count(*) FROM @sessions WHERE cause = '' AND ends > $NOW`); n != 0 {
			t.Errorf("a session that %s lives", what)
		}
	}
}

// quickTokenAboveFloor (C2): the row of the lock was deleted, and created again by a transaction
// that did not see yet that the floor rose.
func quickTokenAboveFloor(t *testing.T, s *Tables) {
	t.Helper()
	b := s.open()
	id := Session(t, b, time.Hour, nil)
	var last fence.Token
	for range 3 {
		req := Ask("n", id)
		token, floor := Take(t, b, req), s.int(`SELECT $FLOOR FROM @meta`)
		if token <= last || token <= fence.Token(floor) { //nolint:gosec // it counts up from above 0
			t.Errorf("token %d after %d; the floor is %d", token, last, floor)
		}
		last = token
		Give(t, b, req)
		s.Exec(s.script(`UPDATE @meta SET $FLOOR = (SELECT last + 3600000000 FROM @locks WHERE name = 'n');UPDATE @locks SET last = $ZERO`, nil)...)
	}
}

// WaitsForTheRow (C1, C2): a statement waits for the row of the lock, and sees of the row what is committed then. It does so
// whether its value knows the row, makes sure that there is one, or takes the long way.
func WaitsForTheRow(t *testing.T, s *Tables) {
	t.Helper()
	b := s.open()
	id := Session(t, b, time.Hour, nil)
	newcomer := func() TablesBackend {
		n := s.open()
		Session(t, n, time.Hour, nil)
		return n
	}
	for way, by := range map[string]func() TablesBackend{
		"known": func() TablesBackend { return b }, "unknown": newcomer, "never quick": func() TablesBackend { n := newcomer(); n.NeverQuick(); return n },
	} {
		for _, c := range []struct {
			name, meanwhile string
			want            error
			above           bool // the token is above the floor, which has risen
			holder          bool // afterwards it is the stranger
		}{
			{"the row changes", `UPDATE @locks SET used = $NOW WHERE name = '$N'`, nil, false, false},
			{
				"another lease is granted", `UPDATE @locks SET token = last + 1, lease = '` + stranger + `', session = '$S' WHERE name = '$N';
				UPDATE @locks SET last = token WHERE name = '$N'`, backend.ErrHeld, false, true,
			},
			{"the lease is abandoned", `UPDATE @locks SET buried = $NOW + $HOUR WHERE name = '$N';` + abandoned, backend.ErrLost, false, false},
			{"the row is swept", swept, nil, true, false},
			{"it is made again, by a client that did not see the floor", swept + `;INSERT INTO @locks (name, last, used) VALUES ('$N', $ZERO, $NOW)`, nil, true, false},
		} {
			t.Run(way+"/"+c.name, func(t *testing.T) {
				req := Ask(way+c.name, id)
				for range 2 {
					first := Ask(req.Name, id)
					Take(t, b, first)
					Give(t, b, first)
				}
				req.Wait = false
				v := by()
				commit := s.Begin(s.script(c.meanwhile, &req)...)
				got := Start(t, v, req)
				Eventually(t, "it waits", s.Waits)
				at := s.int(`SELECT $MICROS`)
				commit()
				g := <-got
				if !errors.Is(g.Err, c.want) {
					t.Fatalf("Acquire: %+v; want %v", g, c.want)
				}
				if g.Err == nil && g.Grant.Since.UnixMicro() < at {
					t.Errorf("it is held since %s, before it stopped waiting", g.Grant.Since)
				}
				if floor := s.int(`SELECT $FLOOR FROM @meta`); c.above && g.Grant.Token <= fence.Token(floor) { //nolint:gosec // it counts up from above 0
					t.Errorf("token %d; the floor is %d", g.Grant.Token, floor)
				}
				if info, err := b.Inspect(Within(t), req.Name); err != nil || c.holder && (len(info.Holders) != 1 || info.Holders[0].Lease != stranger) {
					t.Errorf("Inspect: %+v, %v", info, err)
				}
			})
		}
		t.Run(way+"/a waiter comes", func(t *testing.T) {
			req := Ask(way+"waiter", id)
			v := by()
			Take(t, b, req) // thin
			commit := s.Begin(s.script(waiterComes, &req)...)
			done := make(chan error, 1)
			go func() {
				done <- v.Release(Within(t), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: id})
			}()
			Eventually(t, "it waits", s.Waits)
			commit()
			if err := <-done; err != nil {
				t.Errorf("Release: %v", err)
			}
			if info, err := b.Inspect(Within(t), req.Name); err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != stranger {
				t.Errorf("Inspect: %+v, %v; who waits has to hold it", info, err)
			}
		})
	}
}
