package main_test

import (
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-io/holdfast/examples/internal/web"
	tables "github.com/holdfast-io/holdfast/examples/tables"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) {
	if testserver.IsService() {
		os.Exit(web.Main("tables", tables.Run))
	}
	leaktest.Main(m)
}

const patience = 10 * time.Second // longer than any guest has to wait for a table here

// fixture is a database with table 1 and guests 1 to 100.
type fixture struct {
	*testserver.PostgresDatabase
	t  *testing.T
	db *sql.DB
}

// with makes a test of one that needs a fixture.
func with(test func(*fixture)) func(*testing.T, *testserver.PostgresDatabase) {
	return func(t *testing.T, database *testserver.PostgresDatabase) {
		t.Helper()
		f := &fixture{database, t, database.Pool()}
		f.open(patience)
		f.Exec("INSERT INTO mesa (id, lugares) VALUES (1, 4)", "INSERT INTO usuario SELECT n, 'guest ' || n FROM generate_series(1, 100) n")
		test(f)
	}
}

// open is an instance's way to the database.
func (f *fixture) open(wait time.Duration) *tables.Bar {
	f.t.Helper()
	bar, err := tables.Open(f.t.Context(), f.URL(), 2*time.Hour, wait)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(bar.Close)
	return bar
}

// serve is an instance in this process.
func (f *fixture) serve(wait time.Duration) string {
	f.t.Helper()
	server := httptest.NewServer(tables.NewAPI(f.open(wait), slog.New(slog.DiscardHandler)))
	f.t.Cleanup(func() {
		server.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return server.URL
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

type answer = testserver.Answer[tables.Reservation]

func get(t *testing.T, url string) answer {
	t.Helper()
	return testserver.Do[tables.Reservation](t, http.MethodGet, url, "")
}

// reserve is the document's call.
func reserve(t *testing.T, url string, table, guest int, from string) answer {
	t.Helper()
	return testserver.Do[tables.Reservation](t, http.MethodPost, fmt.Sprintf("%s/mesas/%d/reservas", url, table), fmt.Sprintf(`{"usuarioId":%d,"dataReserva":%q}`, guest, from))
}
