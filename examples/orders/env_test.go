package main_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
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

	"github.com/holdfast-io/holdfast"
	orders "github.com/holdfast-io/holdfast/examples/orders"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/open"
)

// serviceEnv makes this binary the service, with the arguments of the test.
const serviceEnv = "HOLDFAST_EXAMPLE_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(serviceEnv) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		err := orders.Run(ctx, os.Args[1:], provider, os.Stdout, os.Stderr)
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

// stuckOrder is an order for which the instance "three" asks the provider for ever, and
// continues as if nothing had happened when its lock is lost.
const stuckOrder = 999

func provider(ctx context.Context, o orders.Order) error {
	if o.ID == stuckOrder && os.Getenv(serviceEnv) == "three" {
		<-ctx.Done()
		return nil
	}
	t := time.NewTimer(10 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// process is an instance of the service in a process of its own.
type process struct {
	*testserver.Process
	url string
}

// start starts one and waits until it listens.
func start(t *testing.T, name string, args ...string) process {
	t.Helper()
	p, url := testserver.Service(t, serviceEnv+"="+name, append([]string{"--name", name}, args...)...)
	return process{p, url}
}

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

// fixture is a database with the tables, and clients of its locks.
type fixture struct {
	*testserver.PostgresDatabase
	t     *testing.T
	store *orders.Store
	db    *sql.DB
}

func setUp(t *testing.T, database *testserver.PostgresDatabase) *fixture {
	t.Helper()
	store, err := orders.OpenStore(t.Context(), database.URL(), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	db, err := sql.Open("pgx", database.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &fixture{database, t, store, db}
}

// client is a client of the locks in the same database.
func (f *fixture) client(cfg holdfast.Config) *holdfast.Client {
	t := f.t
	t.Helper()
	b, err := open.URL(t.Context(), f.URL(), open.Options{})
	if err != nil {
		t.Fatal(err)
	}
	locks, err := holdfast.New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := locks.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		_ = b.Close()
	})
	return locks
}

// serve is an instance in this process.
func (f *fixture) serve(locks *holdfast.Client, authorize orders.Authorize) string {
	log := slog.New(slog.DiscardHandler)
	server := httptest.NewServer(orders.NewAPI(orders.NewShop(f.store, locks, authorize, log), log))
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

	Type      string       `json:"type"`
	Field     string       `json:"field"`
	Detail    string       `json:"detail"`
	Status    any          `json:"status"` // of the order, or the problem's
	Order     orders.Order `json:"order"`
	Remaining int          `json:"remaining_stock"`
	Repeated  bool         `json:"repeated"`
	Stock     int          `json:"stock"`
}

func (a answer) is(kind string) bool { return a.Type == "urn:holdfast:example:"+kind }

// try sends one request.
func try(ctx context.Context, method, url, key, body string) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewBufferString(body))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Accept-Language", "pt-BR, en;q=0.5") // every problem has its text in Portuguese
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: res.StatusCode, header: res.Header, text: string(text)}
	return a, json.Unmarshal(text, &a)
}

func do(t *testing.T, method, url, key, body string) answer {
	t.Helper()
	a, err := try(t.Context(), method, url, key, body)
	if err != nil {
		t.Error(err)
	}
	if lang := a.header.Get("Content-Language"); a.Type != "" && lang != "pt" {
		t.Errorf("%s %s: a problem in the language %q: %s", method, url, lang, a.text)
	}
	return a
}

func processOrder(t *testing.T, url string, id int) answer {
	t.Helper()
	return do(t, http.MethodPost, fmt.Sprintf("%s/orders/%d/process", url, id), "", "")
}

func reserveStock(t *testing.T, url string, product int, key string, quantity int) answer {
	t.Helper()
	return do(t, http.MethodPost, fmt.Sprintf("%s/inventory/%d/reserve", url, product), key, fmt.Sprintf(`{"quantity":%d}`, quantity))
}

func expect(t *testing.T, a answer, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("the answer is %d, not %d: %s", a.status, status, a.text)
	}
	return a
}
