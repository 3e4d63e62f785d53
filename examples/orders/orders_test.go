package main_test

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	orders "github.com/holdfast-io/holdfast/examples/orders"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestOrders runs everything on one server.
func TestOrders(t *testing.T) {
	t.Parallel()
	testserver.OnPostgres(t, map[string]func(*testing.T, *testserver.PostgresDatabase){
		"Fleet": with(testFleet), "WithoutLock": with(testWithoutLock), "TwoLocksForOneRow": with(testTwoLocksForOneRow),
		"LockIsNotEnough": with(testLockIsNotEnough),
		"TokenAfterRead":  with(func(f *fixture) { testToken(f, false) }),
		"TokenAfterWrite": with(func(f *fixture) { testToken(f, true) }),
		"Order":           with(testOrder), "Outside": with(testOutside), "Reserve": with(testReserve), "StockBusy": with(testStockBusy),
	})
}

// testOrder: an order is processed once, by one at a time, and the answers report the outcome.
func testOrder(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 3)", "INSERT INTO orders (id, product, quantity) VALUES (1, 1, 2), (2, 1, 2), (3, 1, 1)")
	locks := f.client()
	url := f.serve(locks, nil)
	f.lock(locks, "order:1")
	if a := processOrder(t, url, 1).Expect(t, http.StatusConflict, "busy"); a.Header.Get("Retry-After") != "1" {
		t.Errorf("while another works on it: %v", a.Header)
	}
	f.end(locks, "order:1")
	if a := processOrder(t, url, 1).Expect(t, http.StatusOK, ""); a.Body.Status != orders.StatusCompleted {
		t.Errorf("processed: %s", a.Text)
	}
	if a := processOrder(t, url, 1).Expect(t, http.StatusBadRequest, "already-processed"); a.Body.Order.Status != orders.StatusCompleted {
		t.Errorf("once more: %s", a.Text)
	}
	if a := processOrder(t, url, 2).Expect(t, http.StatusBadRequest, "insufficient-stock"); a.Body.Order.Status != orders.StatusRejected {
		t.Errorf("two where there is one: %s", a.Text)
	}
	processOrder(t, url, 2).Expect(t, http.StatusBadRequest, "already-processed")
	processOrder(t, url, 3).Expect(t, http.StatusOK, "")
	processOrder(t, url, 4).Expect(t, http.StatusNotFound, "not-found")
	if a := testserver.Do[body](t, http.MethodGet, url+"/inventory/1", "").Expect(t, http.StatusOK, ""); a.Body.Stock != 0 {
		t.Errorf("the stock is %s", a.Text)
	}
	if n := f.Int("SELECT count(*) FROM charge"); n != 2 {
		t.Errorf("%d charges", n)
	}
}

// testOutside: the command asks a payment provider over HTTP, and sends a confirmation for each order that was completed,
// from the database: none for an order that was rolled back, and again where the first answer was lost. Keys of requests that
// are sent again stay the same.
func testOutside(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 3)", "INSERT INTO orders (id, product, quantity) VALUES (1, 1, 2), (2, 1, 2), (3, 1, 1)",
		"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused by the test'; END $$",
		"CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION refuse()")
	type request struct{ path, key, body string }
	requests := make(chan request, 100)
	fail := make(chan bool, 1)
	fail <- true
	outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- request{r.URL.Path, r.Header.Get("Idempotency-Key"), string(body)}
		switch {
		case strings.Contains(string(body), `"id":3`):
			w.WriteHeader(http.StatusPaymentRequired)
		case r.URL.Path == "/mail" && len(fail) > 0:
			<-fail
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(outside.Close)
	p, url := testserver.Service(t, "--database", f.URL(), "--payments", outside.URL+"/charge", "--mail", outside.URL+"/mail")
	processOrder(t, url, 1).Expect(t, http.StatusServiceUnavailable, "unavailable")
	if n := f.Int("SELECT count(*) FROM mail"); n != 0 {
		t.Fatalf("%d confirmations of an order that was rolled back", n)
	}
	f.Exec("DROP TRIGGER refuse ON orders")
	processOrder(t, url, 1).Expect(t, http.StatusOK, "")
	processOrder(t, url, 2).Expect(t, http.StatusBadRequest, "insufficient-stock")
	processOrder(t, url, 3).Expect(t, http.StatusServiceUnavailable, "unavailable")
	got := make(map[request]int)
	mail := request{"/mail", "order-1-confirmation", `{"order":1}`}
	for deadline := time.After(time.Minute); got[mail] < 2; {
		select {
		case r := <-requests:
			got[r]++
		case <-deadline:
			t.Fatalf("requests %v", got)
		}
	}
	want := map[request]int{
		{"/charge", "order-1", `{"id":1,"product":1,"quantity":2,"status":"pending"}`}: 2,
		{"/charge", "order-2", `{"id":2,"product":1,"quantity":2,"status":"pending"}`}: 1,
		{"/charge", "order-3", `{"id":3,"product":1,"quantity":1,"status":"pending"}`}: 1,
		mail: 2,
	}
	if !maps.Equal(got, want) {
		t.Errorf("requests %v, want %v", got, want)
	}
	p.Terminate()
	if err := p.Wait(time.Minute); err != nil {
		t.Errorf("%v: %s", err, p.Log())
	}
}

// testReserve: a named request is done once.
func testReserve(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 5)")
	url := f.serve(f.client(), nil)
	if a := reserveStock(t, url, 1, "r-1", 2).Expect(t, http.StatusOK, ""); a.Body.Remaining != 3 || a.Body.Repeated {
		t.Errorf("two of five: %s", a.Text)
	}
	if a := reserveStock(t, url, 1, "r-1", 2).Expect(t, http.StatusOK, ""); a.Body.Remaining != 3 || !a.Body.Repeated {
		t.Errorf("the same request: %s", a.Text)
	}
	reserveStock(t, url, 1, "r-1", 1).Expect(t, http.StatusUnprocessableEntity, "other-request")
	if a := reserveStock(t, url, 1, "r-2", 4).Expect(t, http.StatusBadRequest, "insufficient-stock"); a.Body.Stock != 3 {
		t.Errorf("four of three: %s", a.Text)
	}
	reserveStock(t, url, 1, "", 1).Expect(t, http.StatusOK, "") // without a name each is another
	reserveStock(t, url, 1, "", 1).Expect(t, http.StatusOK, "")
	reserveStock(t, url, 1, "", 0).Expect(t, http.StatusBadRequest, "invalid")
	reserveStock(t, url, 1, strings.Repeat("k", 65), 1).Expect(t, http.StatusBadRequest, "invalid")
	if a := testserver.Do[body](t, http.MethodPost, url+"/inventory/1/reserve?quantity=1", "").Expect(t, http.StatusOK, ""); a.Body.Remaining != 0 {
		t.Errorf("the quantity in the query: %s", a.Text)
	}
}

// testStockBusy: a reservation waits for its turn for five seconds.
func testStockBusy(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 5)")
	locks := f.client()
	f.lock(locks, "inventory:1")
	begun := time.Now()
	a := reserveStock(t, f.serve(locks, nil), 1, "", 1).Expect(t, http.StatusServiceUnavailable, "stock-busy")
	if took := time.Since(begun); took < orders.StockWait || a.Header.Get("Retry-After") == "" {
		t.Errorf("after %s: %s", took, a.Text)
	}
}
