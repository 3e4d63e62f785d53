package main_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	tables "github.com/holdfast-io/holdfast/examples/tables"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// serviceEnv makes this binary the service, with the arguments of the test.
const serviceEnv = "HOLDFAST_EXAMPLE_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(serviceEnv) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		err := tables.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

// start starts an instance in a process of its own and waits until it listens.
func start(t *testing.T, args ...string) (*testserver.Process, string) {
	t.Helper()
	return testserver.Service(t, serviceEnv+"=1", args...)
}

const (
	twoHours = 2 * time.Hour
	patience = 10 * time.Second // longer than any guest has to wait for a table here
)

// each runs the tests on one server, each on a database of its own.
func each(t *testing.T, tests map[string]func(*fixture)) {
	t.Helper()
	pg := testserver.Postgres(t, "max_connections=200")
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			database := pg.Database(t, "test_"+strings.ToLower(name))
			t.Parallel() // it continues when all have been started
			test(setUp(t, database))
		})
	}
}

// fixture is a database with table 1 and guests 1 to 100.
type fixture struct {
	*testserver.PostgresDatabase
	t  *testing.T
	db *sql.DB
}

func setUp(t *testing.T, database *testserver.PostgresDatabase) *fixture {
	t.Helper()
	db, err := sql.Open("pgx", database.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	f := &fixture{database, t, db}
	f.open(patience)
	f.Exec("INSERT INTO mesa (id, lugares) VALUES (1, 4)", "INSERT INTO usuario SELECT n, 'guest ' || n FROM generate_series(1, 100) n")
	return f
}

// open is an instance's way to the database.
func (f *fixture) open(wait time.Duration) *tables.Bar {
	f.t.Helper()
	bar, err := tables.Open(f.t.Context(), f.URL(), twoHours, wait)
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

// answer is the response of the service.
type answer struct {
	status int
	header http.Header
	text   string

	Type   string `json:"type"`
	Field  string `json:"field"`
	Detail string `json:"detail"`
	ID     int64  `json:"id"`
	Table  int64  `json:"mesaId"`
	Guest  int64  `json:"usuarioId"`
	From   string `json:"dataReserva"`
	To     string `json:"ate"`
	Count  int    `json:"reservas"`
}

func (a answer) is(kind string) bool { return a.Type == "urn:holdfast:example:"+kind }

// do sends one request, from any goroutine.
func do(t *testing.T, method, url, body string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewBufferString(body))
	if err != nil {
		t.Error(err)
		return answer{}
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return answer{}
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	a := answer{status: res.StatusCode, header: res.Header, text: string(text)}
	if err = errors.Join(err, json.Unmarshal(text, &a)); err != nil {
		t.Errorf("%s: %v", text, err)
	}
	if lang := a.header.Get("Content-Language"); a.Type != "" && lang != "pt" {
		t.Errorf("%s %s: a problem in the language %q: %s", method, url, lang, a.text)
	}
	return a
}

// get reads what is listed there into v.
func get(t *testing.T, url string, v any) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if err := json.NewDecoder(res.Body).Decode(v); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %d, %v", url, res.StatusCode, err)
	}
}

// reserve is the document's call. It retries when it is told to.
func reserve(t *testing.T, url string, table, guest int, from string) answer {
	t.Helper()
	for {
		a := do(t, http.MethodPost, fmt.Sprintf("%s/mesas/%d/reservas", url, table), fmt.Sprintf(`{"usuarioId":%d,"dataReserva":%q}`, guest, from))
		if !a.is("busy") {
			return a
		}
	}
}

func expect(t *testing.T, a answer, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("the answer is %d, not %d: %s", a.status, status, a.text)
	}
	return a
}
