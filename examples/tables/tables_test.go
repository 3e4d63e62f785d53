package main_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	tables "github.com/holdfast-io/holdfast/examples/tables"
	"github.com/holdfast-io/holdfast/fence"
)

const evening = "2926-12-24T20:00:00"

// TestTables runs everything on one server.
func TestTables(t *testing.T) {
	t.Parallel()
	each(t, map[string]func(*fixture){
		"Reservation": testReservation, "Lists": testLists, "OneTable": testOneTable, "Busy": testBusy, "Retried": testRetried, "BadRequests": testBadRequests, "Start": testStart,
		"LostUpdate": testLostUpdate, "ShareLetsBothWrite": testShareLetsBothWrite, "ShareDeadlocks": testShareDeadlocks,
		"UpdateWaits": testUpdateWaits,
	})
}

// testReservation: the answers of the document, and a Location that leads somewhere.
func testReservation(f *fixture) {
	t := f.t
	url := f.serve(patience)
	made := expect(t, reserve(t, url, 1, 7, evening), http.StatusCreated)
	if made.Table != 1 || made.Guest != 7 || made.From != evening || made.To != "2926-12-24T22:00:00" {
		t.Errorf("reserved: %s", made.text)
	}
	where := made.header.Get("Location")
	if want := fmt.Sprintf("/mesas/1/reservas/%d", made.ID); where != want {
		t.Errorf("the Location is %q, not %q", where, want)
	}
	if again := expect(t, do(t, http.MethodGet, url+where, ""), http.StatusOK); again.text != made.text {
		t.Errorf("there is %s, and it was made as %s", again.text, made.text)
	}
	expect(t, reserve(t, url, 2, 7, evening), http.StatusNotFound)
	if a := expect(t, reserve(t, url, 1, 101, "2926-12-25T20:00"), http.StatusUnprocessableEntity); !a.is("unknown-guest") {
		t.Errorf("guest 101: %s", a.text)
	}
	for _, at := range []string{evening, "2926-12-24T21:59:59", "2926-12-24T18:00:01"} {
		if a := expect(t, reserve(t, url, 1, 8, at), http.StatusUnprocessableEntity); !a.is("taken") {
			t.Errorf("at %s: %s", at, a.text)
		}
	}
	expect(t, reserve(t, url, 1, 8, "2926-12-24T22:00"), http.StatusCreated)
	expect(t, reserve(t, url, 1, 8, "2926-12-24T18:00"), http.StatusCreated)
	if a := expect(t, do(t, http.MethodGet, url+"/mesas/1", ""), http.StatusOK); a.Count != 3 {
		t.Errorf("three reservations: %s", a.text)
	}
	expect(t, do(t, http.MethodGet, url+"/mesas/1/reservas/77", ""), http.StatusNotFound)
	expect(t, do(t, http.MethodGet, url+"/mesas/2", ""), http.StatusNotFound)
}

// testLists: tables and reservations in their order, and no reservation in the past.
func testLists(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO mesa (id, lugares) VALUES (2, 2)", "INSERT INTO reserva (mesa_id, usuario_id, inicio, fim) VALUES (1, 3, '2001-01-01 20:00', '2001-01-01 22:00')")
	url := f.serve(patience)
	if a := expect(t, reserve(t, url, 1, 7, "2001-01-01T20:00"), http.StatusUnprocessableEntity); !a.is("past") {
		t.Errorf("in the past: %s", a.text)
	}
	late := time.Now().Add(-25 * time.Hour).Format("2006-01-02T15:04:05") // in every zone
	if a := expect(t, reserve(t, url, 1, 7, late), http.StatusUnprocessableEntity); !a.is("past") {
		t.Errorf("yesterday: %s", a.text)
	}
	expect(t, reserve(t, url, 1, 8, "2926-12-25T20:00"), http.StatusCreated)
	expect(t, reserve(t, url, 1, 7, evening), http.StatusCreated)
	guests := func(query string) []int64 {
		var all []int64
		var list struct {
			Reservations []tables.Reservation `json:"reservas"`
		}
		get(t, url+"/mesas/1/reservas"+query, &list)
		for _, r := range list.Reservations {
			all = append(all, r.Guest)
		}
		return all
	}
	for query, want := range map[string][]int64{"": {7, 8}, "?depois=2000-01-01T00:00": {3, 7, 8}, "?depois=2926-12-25T00:00": {8}, "?depois=2927-01-01T00:00": nil} {
		if got := guests(query); !slices.Equal(got, want) {
			t.Errorf("reservations%s of the guests %d, want %d", query, got, want)
		}
	}
	var all struct {
		Tables []tables.Table `json:"mesas"`
	}
	if get(t, url+"/mesas", &all); !slices.Equal(all.Tables, []tables.Table{{ID: 1, Seats: 4, Reservations: 2}, {ID: 2, Seats: 2}}) {
		t.Errorf("tables %+v", all.Tables)
	}
	if get(t, url+"/mesas?depois=1", &all); len(all.Tables) != 1 || all.Tables[0].ID != 2 {
		t.Errorf("tables after the first: %+v", all.Tables)
	}
	expect(t, do(t, http.MethodGet, url+"/mesas/3/reservas", ""), http.StatusNotFound)
}

// testOneTable: of fifty guests at two instances one has the table; and of thirty who want it
// on different days all have it, and each is counted.
func testOneTable(f *fixture) {
	t := f.t
	urls := []string{f.serve(patience), f.serve(patience)}
	answers := make([]answer, 80)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			at := evening
			if i >= 50 {
				at = fmt.Sprintf("2927-01-%02dT20:00", i-49)
			}
			answers[i] = reserve(t, urls[i%2], 1, i+1, at)
		})
	}
	wg.Wait()
	have := 0
	for i, a := range answers {
		switch {
		case a.status == http.StatusCreated && i < 50:
			have++
		case a.status == http.StatusCreated:
		case i >= 50 || a.status != http.StatusUnprocessableEntity || !a.is("taken"):
			t.Errorf("guest %d: %d %s", i+1, a.status, a.text)
		}
	}
	if have != 1 {
		t.Errorf("%d guests were told that they have the table", have)
	}
	f.count(31, 31)
}

// count fails the test unless there are made reservations, and the row of table 1 counts counted.
func (f *fixture) count(made, counted int64) {
	f.t.Helper()
	if n := f.Int("SELECT count(*) FROM reserva"); n != made {
		f.t.Errorf("%d reservations, not %d", n, made)
	}
	if n := f.Int("SELECT reservas FROM mesa WHERE id = 1"); n != counted {
		f.t.Errorf("%d were counted, not %d", n, counted)
	}
}

// testBusy: no request waits for ever for a row that another transaction has.
func testBusy(f *fixture) {
	t := f.t
	url := f.serve(50 * time.Millisecond)
	tx, err := f.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), "SELECT id FROM mesa WHERE id = 1 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	a := expect(t, do(t, http.MethodPost, url+"/mesas/1/reservas", `{"usuarioId":1,"dataReserva":"`+evening+`"}`), http.StatusServiceUnavailable)
	if !a.is("busy") || a.header.Get("Retry-After") == "" {
		t.Errorf("while another transaction has the row locked: %s", a.text)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	expect(t, reserve(t, url, 1, 1, evening), http.StatusCreated)
}

// testRetried: a transaction that the database ended because of others is run again, from its start. After five of them
// the guest is told to try again, and nothing was written.
func testRetried(f *fixture) {
	f.Exec("CREATE SEQUENCE conflicts",
		`CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
			IF nextval(''conflicts'') % 8 <> 0 THEN RAISE EXCEPTION ''a conflict'' USING ERRCODE = ''40001''; END IF; RETURN NEW; END'`,
		"CREATE TRIGGER conflict BEFORE INSERT ON reserva FOR EACH ROW EXECUTE FUNCTION conflict()")
	url := f.serve(patience)
	ask := func() answer { // once: the function reserve would retry
		return do(f.t, http.MethodPost, url+"/mesas/1/reservas", `{"usuarioId":1,"dataReserva":"`+evening+`"}`)
	}
	if a := expect(f.t, ask(), http.StatusServiceUnavailable); !a.is("busy") || a.header.Get("Retry-After") == "" {
		f.t.Errorf("five conflicts: %s", a.text)
	}
	f.count(0, 0)
	expect(f.t, ask(), http.StatusCreated) // the third of these is the eighth
	f.count(1, 1)
	if n := f.Int("SELECT last_value FROM conflicts"); n != 8 {
		f.t.Errorf("%d transactions, not 5 and 3", n)
	}
}

// testBadRequests: every refusal is a problem that says what is wrong.
func testBadRequests(f *fixture) {
	t := f.t
	url := f.serve(patience)
	for _, c := range []struct {
		method, path, body string
		status             int
		field              string
	}{
		{"POST", "/mesas/1/reservas", ``, 400, "body"},
		{"POST", "/mesas/1/reservas", `{"usuarioId":1}`, 400, "dataReserva"},
		{"POST", "/mesas/1/reservas", `{"dataReserva":"` + evening + `"}`, 400, "usuarioId"},
		{"POST", "/mesas/1/reservas", `{"usuarioId":"1","dataReserva":"` + evening + `"}`, 400, "usuarioId"},
		{"POST", "/mesas/1/reservas", `{"usuarioId":1,"dataReserva":"tonight"}`, 400, "body"},
		{"POST", "/mesas/1/reservas", `{"usuarioId":1,"dataReserva":"2926-02-30T20:00:00"}`, 400, "body"},
		{"POST", "/mesas/1/reservas", `{"usuarioId":1,"dataReserva":"9999-12-31T23:00:00"}`, 400, "body"},
		{"POST", "/mesas/1/reservas", `{"usuarioId":1,"dataReserva":"` + evening + `.5"}`, 400, "body"},
		{"POST", "/mesas/1/reservas", `{"usuarioId":1,"dataReserva":null}`, 400, "body"},
		{"POST", "/mesas/1/reservas", `{"usuarioId":1,"dataReserva":"` + evening + `","lugares":2}`, 400, "body"},
		{"POST", "/mesas/1/reservas", `{"usuarioId":1,"dataReserva":"` + strings.Repeat("2", 5000) + `"}`, 413, ""},
		{"POST", "/mesas/0/reservas", `{"usuarioId":1,"dataReserva":"` + evening + `"}`, 400, "id"},
		{"GET", "/mesas/1/reservas/x", ``, 400, "reserva"},
		{"DELETE", "/mesas/1", ``, 405, ""},
		{"GET", "/mesas?depois=x", ``, 400, "depois"},
		{"GET", "/mesas/1/reservas?depois=x", ``, 400, "depois"},
		{"GET", "/", ``, 404, ""},
	} {
		a := do(t, c.method, url+c.path, c.body)
		if a.status != c.status || a.Field != c.field || a.Detail == "" || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s %.80s: %d %s", c.method, c.path, c.body, a.status, a.text)
		}
	}
	f.count(0, 0)
}

// testStart: the command refuses what it cannot use, and fills a database for a
// demonstration once.
func testStart(f *fixture) {
	t, pg := f.t, f.URL()
	for field, args := range map[string][]string{
		"--database": {}, "--stay": {"--database", pg, "--stay", "1s"}, "--wait": {"--database", pg, "--wait", "1h"},
	} {
		err := tables.Run(t.Context(), append([]string{"--listen", "127.0.0.1:0"}, args...), io.Discard, io.Discard)
		var bad *fence.InvalidError
		if !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	first, url := start(t, "--database", pg, "--demo")
	expect(t, reserve(t, url, 3, 2, evening), http.StatusCreated)
	first.Terminate()
	if err := first.Wait(time.Minute); err != nil {
		t.Errorf("told to stop, it ended with %v: %s", err, first.Log())
	}
	_, url = start(t, "--database", pg, "--demo")
	if a := expect(t, do(t, http.MethodGet, url+"/mesas/3", ""), http.StatusOK); a.Count != 1 {
		t.Errorf("after a restart: %s", a.text)
	}
	http.DefaultClient.CloseIdleConnections()
}
