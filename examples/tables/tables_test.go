package main_test

import (
	"fmt"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

const evening = "2926-12-24T20:00:00"

// TestTables runs everything on one server.
func TestTables(t *testing.T) {
	t.Parallel()
	testserver.OnPostgres(t, map[string]func(*testing.T, *testserver.PostgresDatabase){
		"Reservation": with(testReservation), "Lists": with(testLists), "OneTable": with(testOneTable), "Busy": with(testBusy), "Retried": with(testRetried),
		"LostUpdate": with(testLostUpdate), "ShareLetsBothWrite": with(testShareLetsBothWrite), "ShareDeadlocks": with(testShareDeadlocks),
		"UpdateWaits": with(testUpdateWaits),
	})
}

// testReservation: the answers of the document, of the command, and a Location that leads somewhere.
func testReservation(f *fixture) {
	t := f.t
	p, url := testserver.Service(t, "--database", f.URL(), "--demo")
	made := reserve(t, url, 1, 7, evening).Expect(t, http.StatusCreated, "")
	where := fmt.Sprintf("/mesas/1/reservas/%d", made.Body.ID)
	if want := fmt.Sprintf(`{"id":%d,"mesaId":1,"usuarioId":7,"dataReserva":"2926-12-24T20:00:00","ate":"2926-12-24T22:00:00"}`+"\n", made.Body.ID); made.Text != want ||
		made.Header.Get("Location") != where {
		t.Errorf("reserved: %s at %q", made.Text, made.Header.Get("Location"))
	}
	if again := get(t, url+where).Expect(t, http.StatusOK, ""); again.Text != made.Text {
		t.Errorf("there is %s, and it was made as %s", again.Text, made.Text)
	}
	reserve(t, url, 9, 7, evening).Expect(t, http.StatusNotFound, "not-found")
	reserve(t, url, 1, 101, "2926-12-25T20:00").Expect(t, http.StatusUnprocessableEntity, "unknown-guest")
	reserve(t, url, 1, 7, "2001-01-01T20:00").Expect(t, http.StatusUnprocessableEntity, "past")
	reserve(t, url, 1, 7, time.Now().Add(-25*time.Hour).Format("2006-01-02T15:04:05")).Expect(t, http.StatusUnprocessableEntity, "past") // in every zone
	for _, at := range []string{evening, "2926-12-24T21:59:59", "2926-12-24T18:00:01"} {
		reserve(t, url, 1, 8, at).Expect(t, http.StatusUnprocessableEntity, "taken")
	}
	for _, at := range []string{"tonight", "2926-02-30T20:00:00", "9999-12-31T23:00:00", evening + ".5"} {
		reserve(t, url, 1, 8, at).Expect(t, http.StatusBadRequest, "invalid")
	}
	reserve(t, url, 1, 8, "2926-12-24T22:00").Expect(t, http.StatusCreated, "")
	reserve(t, url, 1, 8, "2926-12-24T18:00").Expect(t, http.StatusCreated, "")
	get(t, url+"/mesas/1/reservas/77").Expect(t, http.StatusNotFound, "not-found")
	get(t, url+"/mesas/9").Expect(t, http.StatusNotFound, "not-found")
	p.Terminate()
	if err := p.Wait(time.Minute); err != nil {
		t.Errorf("told to stop, it ended with %v: %s", err, p.Log())
	}
}

// testLists: tables and reservations in their order.
func testLists(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO mesa (id, lugares) VALUES (2, 2)", "INSERT INTO reserva (mesa_id, usuario_id, inicio, fim) VALUES (1, 3, '2001-01-01 20:00', '2001-01-01 22:00')")
	url := f.serve(patience)
	reserve(t, url, 1, 8, "2926-12-25T20:00").Expect(t, http.StatusCreated, "")
	reserve(t, url, 1, 7, evening).Expect(t, http.StatusCreated, "")
	numbers := regexp.MustCompile(`"(usuarioId|lugares)":\d+`) // of guests and of seats
	for path, want := range map[string]string{
		"/mesas": `["lugares":4 "lugares":2]`, "/mesas/1": `["lugares":4]`, "/mesas?depois=1": `["lugares":2]`, "/mesas/1/reservas": `["usuarioId":7 "usuarioId":8]`,
		"/mesas/1/reservas?depois=2000-01-01T00:00": `["usuarioId":3 "usuarioId":7 "usuarioId":8]`,
		"/mesas/1/reservas?depois=2926-12-25T00:00": `["usuarioId":8]`, "/mesas/1/reservas?depois=2927-01-01T00:00": "[]",
	} {
		a := testserver.Do[any](t, http.MethodGet, url+path, "").Expect(t, http.StatusOK, "")
		if got := fmt.Sprint(numbers.FindAllString(a.Text, -1)); got != want {
			t.Errorf("%s: %s, want %s", path, a.Text, want)
		}
	}
	get(t, url+"/mesas/3/reservas").Expect(t, http.StatusNotFound, "not-found")
}

// testOneTable: of fifty guests at two instances one has the table; and of thirty who want it
// on different days all have it, and each is counted.
func testOneTable(f *fixture) {
	t := f.t
	urls := []string{f.serve(patience), f.serve(patience)}
	answers := make([]answer, 80)
	testserver.Together(len(answers), func(i int) {
		at := evening
		if i >= 50 {
			at = fmt.Sprintf("2927-01-%02dT20:00", i-49)
		}
		for answers[i] = reserve(t, urls[i%2], 1, i+1, at); answers[i].Problem == "busy"; { // it is told to retry
			answers[i] = reserve(t, urls[i%2], 1, i+1, at)
		}
	})
	have := 0
	for i, a := range answers {
		switch {
		case a.Status == http.StatusCreated && i < 50:
			have++
		case a.Status == http.StatusCreated:
		case i >= 50 || a.Problem != "taken":
			t.Errorf("guest %d: %d %s", i+1, a.Status, a.Text)
		}
	}
	if have != 1 {
		t.Errorf("%d guests were told that they have the table", have)
	}
	f.count(31, 31)
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
	if a := reserve(t, url, 1, 1, evening).Expect(t, http.StatusServiceUnavailable, "busy"); a.Header.Get("Retry-After") != "1" {
		t.Errorf("while another transaction has the row locked: %v", a.Header)
	}
}

// testRetried: a transaction that the database ended because of others is run again, from its start. After five of them
// the guest is told to try again, and nothing was written.
func testRetried(f *fixture) {
	f.Exec("CREATE SEQUENCE conflicts",
		`CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
			IF nextval(''conflicts'') % 8 <> 0 THEN RAISE EXCEPTION ''a conflict'' USING ERRCODE = ''40001''; END IF; RETURN NEW; END'`,
		"CREATE TRIGGER conflict BEFORE INSERT ON reserva FOR EACH ROW EXECUTE FUNCTION conflict()")
	url := f.serve(patience)
	reserve(f.t, url, 1, 1, evening).Expect(f.t, http.StatusServiceUnavailable, "busy")
	f.count(0, 0)
	reserve(f.t, url, 1, 1, evening).Expect(f.t, http.StatusCreated, "") // the third of these is the eighth
	f.count(1, 1)
	if n := f.Int("SELECT last_value FROM conflicts"); n != 8 {
		f.t.Errorf("%d transactions, not 5 and 3", n)
	}
}
