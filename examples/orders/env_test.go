package main_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/examples/internal/web"
	orders "github.com/holdfast-io/holdfast/examples/orders"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) {
	if testserver.IsService() {
		os.Exit(web.Main("orders", func(ctx context.Context, args []string, out, diag io.Writer) error {
			return orders.Run(ctx, args, provider, out, diag)
		}))
	}
	leaktest.Main(m)
}

// stuckOrder is an order for which the instance "three" asks the provider for ever, and
// continues as if nothing had happened when its lock is lost.
const stuckOrder = 999

func provider(ctx context.Context, o orders.Order) error {
	if o.ID == stuckOrder && slices.Contains(os.Args, "three") {
		<-ctx.Done()
		return nil
	}
	select {
	case <-time.After(10 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// fixture is a database with the tables, and clients of its locks.
type fixture struct {
	*testserver.PostgresDatabase
	t     *testing.T
	store *orders.Store
	db    *sql.DB
}

// with makes a test of one that needs a fixture.
func with(test func(*fixture)) func(*testing.T, *testserver.PostgresDatabase) {
	return func(t *testing.T, database *testserver.PostgresDatabase) {
		t.Helper()
		store, err := orders.OpenStore(t.Context(), database.URL(), 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		test(&fixture{database, t, store, database.Pool()})
	}
}

// client is a client of the locks in the same database.
func (f *fixture) client() *holdfast.Client {
	f.t.Helper()
	locks, end, err := web.Locks(f.t.Context(), f.URL(), holdfast.Config{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = end() })
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

type body struct {
	Status    any          `json:"status"` // of the order, or the problem's
	Order     orders.Order `json:"order"`
	Remaining int          `json:"remaining_stock"`
	Repeated  bool         `json:"repeated"`
	Stock     int          `json:"stock"`
}

type answer = testserver.Answer[body]

func processOrder(t *testing.T, url string, id int) answer {
	t.Helper()
	return testserver.Do[body](t, http.MethodPost, fmt.Sprintf("%s/orders/%d/process", url, id), "")
}

func reserveStock(t *testing.T, url string, product int, key string, quantity int) answer {
	t.Helper()
	return testserver.Do[body](t, http.MethodPost, fmt.Sprintf("%s/inventory/%d/reserve", url, product), fmt.Sprintf(`{"quantity":%d}`, quantity), "Idempotency-Key", key)
}
