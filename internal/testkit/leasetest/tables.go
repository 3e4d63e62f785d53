package leasetest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/chaos"
)

// TablesBackend is a backend on internal/sqllease, with what its tests add.
type TablesBackend interface {
	backend.Backend
	KeepFromSweeping()
	NeverQuick()
	Sweep(ctx context.Context, age time.Duration)
}

// Tables is a server of the test's own with leases in tables, and how to change them behind the back of a backend.
type Tables struct {
	Open  func(url string) TablesBackend // which the test closes
	URL   func(addr string) string       // of the server, or of a proxy before it
	Addr  string                         // of the server
	Clock func() Clock                   // starts the server again, with a clock to set
	Copy  func() func()                  // of its data: returns what puts the copy back

	Exec  func(statements ...string)
	Int   func(query string, args ...any) int64
	Begin func(statements ...string) (commit func()) // a transaction, which keeps its rows
	Waits func() bool                                // a statement waits for a row

	// Dialect replaces @ by what is before the names of the tables, $NOW by the time, $MICROS by its microseconds, $HOUR by an
	// hour, $FLOOR by the column of the floor, $ZERO by the last number of a row that was inserted
	// without one, $ADDR by what follows the session of a lease, and $INFLATE by the statement that moves the lease of the lock $N
	// from its row to the table of leases.
	Dialect *strings.Replacer
}

// script returns the statements of a script, about a request: for the lock $N, with the lease $L, under the session $S.
func (s *Tables) script(script string, req *backend.AcquireRequest) []string {
	script = s.Dialect.Replace(script)
	if req != nil {
		script = strings.NewReplacer("$N", req.Name, "$L", string(req.Lease), "$S", string(req.Session)).Replace(script)
	}
	return slices.DeleteFunc(strings.Split(script, ";"), func(q string) bool { return q == "" })
}

func (s *Tables) int(query string) int64 { return s.Int(s.Dialect.Replace(query)) }

// open opens a value that does no maintenance by itself.
func (s *Tables) open() TablesBackend {
	b := s.Open(s.URL(s.Addr))
	b.KeepFromSweeping()
	return b
}

// behind opens a value behind a proxy.
func (s *Tables) behind(t *testing.T) (TablesBackend, *chaos.Proxy) {
	t.Helper()
	proxy := chaos.Start(t, s.Addr)
	return s.Open(s.URL(proxy.Addr())), proxy
}

// RunTables tests what a database adds to the engine: its statements, and the faults of its connections and its clock.
func RunTables(t *testing.T, start func(t *testing.T) *Tables) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *Tables){
		"lost-replies":            lostReplies,
		"restored":                restored,
		"made-at-once":            madeAtOnce,
		"added-columns":           addedColumns,
		"thin":                    thin,
		"waits-for-the-row":       WaitsForTheRow,
		"quick-conditions":        quickConditions,
		"quick-token-above-floor": quickTokenAboveFloor,
		"session-never-revives":   sessionNeverRevives,
		"long-queue":              longQueue,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, start(t)) })
	}
	for name, test := range map[string]func(*testing.T, *Tables){
		"server-gone":        serverGone,
		"sleeper":            sleeper,
		"renewal-on-its-way": renewalOnItsWay,
		"sweep":              sweep,
		"server-clock-ahead": clockAhead,
		"server-clock-back":  clockBack,
	} {
		t.Run(name, func(t *testing.T) { Slow(t); t.Parallel(); test(t, start(t)) })
	}
}

// madeAtOnce (B): many processes use an empty database at the same time.
func madeAtOnce(t *testing.T, s *Tables) {
	t.Helper()
	opened := make(chan error)
	const values = 8
	for range values {
		b := s.open()
		go func() {
			opened <- b.OpenSession(Within(t), backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
		}()
	}
	for range values {
		if err := <-opened; err != nil {
			t.Error(err)
		}
	}
}

// addedColumns: an operator has added columns to the tables.
func addedColumns(t *testing.T, s *Tables) {
	t.Helper()
	b := s.open()
	holder := Session(t, b, time.Hour, nil)
	for _, table := range []string{"locks", "leases", "sessions", "tombs", "losses"} {
		s.Exec(s.Dialect.Replace("ALTER TABLE @" + table + " ADD COLUMN region varchar(9)"))
	}
	Take(t, b, Ask("one", holder))
	waits := Ask("one", Session(t, b, time.Hour, nil))
	waits.Wait = true
	granted := Start(t, b, waits)
	InQueue(t, b, "one", 1)
	if _, err := b.Break(Within(t), backend.BreakRequest{Name: "one", Reason: "why"}); err != nil {
		t.Error(err)
	}
	if a := <-granted; a.Err != nil {
		t.Error(a.Err)
	}
	if r, err := b.Renew(Within(t), backend.RenewRequest{Session: holder}); err != nil || len(r.Lost) != 1 {
		t.Errorf("%+v, %v; want the break", r, err)
	}
	if err := b.Release(Within(t), backend.ReleaseRequest{Name: "one", Lease: waits.Lease, Session: waits.Session, Abandon: true}); err != nil {
		t.Error(err)
	}
	if err := b.EndSession(Within(t), holder); err != nil {
		t.Error(err)
	}
}

func restored(t *testing.T, s *Tables) {
	t.Helper()
	Restored(t, func() backend.Backend { return s.open() }, s.Copy)
}

func serverGone(t *testing.T, s *Tables) {
	t.Helper()
	b, proxy := s.behind(t)
	ServerGone(t, b, proxy)
}

func clockAhead(t *testing.T, s *Tables) {
	t.Helper()
	c := s.Clock()
	ClockAhead(t, s.open(), s.open(), c)
}

func clockBack(t *testing.T, s *Tables) {
	t.Helper()
	c := s.Clock()
	ClockBack(t, s.open(), s.open(), c, true)
}
