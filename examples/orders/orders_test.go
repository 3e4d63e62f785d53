package main_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	orders "github.com/holdfast-io/holdfast/examples/orders"
)

// TestOrders runs everything on one server.
func TestOrders(t *testing.T) {
	t.Parallel()
	each(t, map[string]func(*fixture){
		"Fleet": testFleet, "WithoutLock": testWithoutLock, "TwoLocksForOneRow": testTwoLocksForOneRow, "LockIsNotEnough": testLockIsNotEnough,
		"TokenAfterRead":  func(f *fixture) { testToken(f, false) },
		"TokenAfterWrite": func(f *fixture) { testToken(f, true) },
		"Order":           testOrder, "Outside": testOutside, "Mail": testMail, "OrderBusy": testOrderBusy, "Reserve": testReserve, "StockBusy": testStockBusy,
		"Epoch":       testEpoch,
		"BadRequests": testBadRequests, "Start": testStart,
	})
}

// testOrder: an order is processed once, and the answers report the outcome.
func testOrder(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 3)", "INSERT INTO orders (id, product, quantity) VALUES (1, 1, 2), (2, 1, 2), (3, 1, 1)")
	url := f.serve(f.client(holdfast.Config{}), nil)
	if a := expect(t, processOrder(t, url, 1), http.StatusOK); a.Status != orders.StatusCompleted {
		t.Errorf("processed: %s", a.text)
	}
	if a := expect(t, processOrder(t, url, 1), http.StatusBadRequest); !a.is("already-processed") || a.Order.Status != orders.StatusCompleted {
		t.Errorf("once more: %s", a.text)
	}
	if a := expect(t, processOrder(t, url, 2), http.StatusBadRequest); !a.is("insufficient-stock") || a.Order.Status != orders.StatusRejected {
		t.Errorf("two where there is one: %s", a.text)
	}
	if a := expect(t, processOrder(t, url, 2), http.StatusBadRequest); !a.is("already-processed") {
		t.Errorf("a rejected order once more: %s", a.text)
	}
	expect(t, processOrder(t, url, 3), http.StatusOK)
	expect(t, processOrder(t, url, 4), http.StatusNotFound)
	if a := expect(t, do(t, http.MethodGet, url+"/inventory/1", "", ""), http.StatusOK); a.Stock != 0 {
		t.Errorf("the stock is %s", a.text)
	}
	if n := f.Int("SELECT count(*) FROM charge"); n != 2 {
		t.Errorf("%d charges", n)
	}
}

// testOrderBusy: while one instance works on an order the others say so immediately. An order
// that the payment provider refuses is not charged, and can be tried again.
func testOrderBusy(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 3)", "INSERT INTO orders (id, product, quantity) VALUES (1, 1, 2)")
	asked, goOn := make(chan struct{}), make(chan error)
	here := f.serve(f.client(holdfast.Config{}), func(ctx context.Context, _ orders.Order) error {
		close(asked)
		select {
		case err := <-goOn:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	there := f.serve(f.client(holdfast.Config{}), nil)
	first := make(chan answer, 1)
	go func() { first <- processOrder(t, here, 1) }()
	<-asked
	if a := expect(t, processOrder(t, there, 1), http.StatusConflict); !a.is("busy") || a.header.Get("Retry-After") == "" {
		t.Errorf("while another works on it: %s", a.text)
	}
	goOn <- errors.New("the card has expired")
	expect(t, <-first, http.StatusServiceUnavailable)
	if n := f.Int("SELECT count(*) FROM charge"); n != 0 {
		t.Errorf("%d charges", n)
	}
	expect(t, processOrder(t, there, 1), http.StatusOK)
}

// testOutside: the command asks a payment provider over HTTP, and sends a confirmation for each order that was completed,
// from the database: also one whose first answer was lost. Keys of requests that are sent again stay the same.
func testOutside(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 3)", "INSERT INTO orders (id, product, quantity) VALUES (1, 1, 2), (2, 1, 2), (3, 1, 1)")
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
	p := start(t, "shop", "--database", f.URL(), "--payments", outside.URL+"/charge", "--mail", outside.URL+"/mail")
	expect(t, processOrder(t, p.url, 1), http.StatusOK)
	expect(t, processOrder(t, p.url, 2), http.StatusBadRequest) // rejected: there is not enough
	expect(t, processOrder(t, p.url, 3), http.StatusServiceUnavailable)
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
		{"/charge", "order-1", `{"id":1,"product":1,"quantity":2,"status":"pending"}`}: 1,
		{"/charge", "order-2", `{"id":2,"product":1,"quantity":2,"status":"pending"}`}: 1,
		{"/charge", "order-3", `{"id":3,"product":1,"quantity":1,"status":"pending"}`}: 1,
		mail: 2,
	}
	if !maps.Equal(got, want) {
		t.Errorf("requests %v, want %v", got, want)
	}
	for deadline := time.Now().Add(time.Minute); f.Int("SELECT count(*) FROM mail WHERE NOT sent") != 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a confirmation is not marked as sent")
		}
	}
	p.Terminate()
	if err := p.Wait(time.Minute); err != nil {
		t.Errorf("%v: %s", err, p.Log())
	}
}

// testMail: an order that is rolled back has no confirmation. While one instance sends one, which takes long, another
// one does not send it, nor does it later.
func testMail(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 3)", "INSERT INTO orders (id, product, quantity) VALUES (1, 1, 2)",
		"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused by the test'; END $$",
		"CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION refuse()")
	url := f.serve(f.client(holdfast.Config{}), nil)
	expect(t, processOrder(t, url, 1), http.StatusServiceUnavailable)
	if n := f.Int("SELECT count(*) FROM mail"); n != 0 {
		t.Fatalf("%d confirmations of an order that was rolled back", n)
	}
	f.Exec("DROP TRIGGER refuse ON orders")
	expect(t, processOrder(t, url, 1), http.StatusOK)
	other, err := orders.OpenStore(t.Context(), f.URL(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	sending, goOn, done := make(chan int64), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := f.store.SendMail(t.Context(), func(_ context.Context, order int64) error {
			sending <- order
			<-goOn
			return nil
		})
		done <- err
	}()
	elsewhere := func(when string) {
		t.Helper()
		found, err := other.SendMail(t.Context(), func(_ context.Context, order int64) error {
			t.Errorf("%s another one sends that of order %d", when, order)
			return nil
		})
		if found || err != nil {
			t.Errorf("%s another one has found one: %t, %v", when, found, err)
		}
	}
	select {
	case order := <-sending:
		if order != 1 {
			t.Errorf("the confirmation of order %d", order)
		}
	case err := <-done:
		t.Fatalf("no confirmation is sent: %v", err)
	}
	elsewhere("while it is sent")
	close(goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	elsewhere("after it was sent")
}

// testReserve: a named request is done once.
func testReserve(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 5)")
	url := f.serve(f.client(holdfast.Config{}), nil)
	if a := expect(t, reserveStock(t, url, 1, "r-1", 2), http.StatusOK); a.Remaining != 3 || a.Repeated {
		t.Errorf("two of five: %s", a.text)
	}
	if a := expect(t, reserveStock(t, url, 1, "r-1", 2), http.StatusOK); a.Remaining != 3 || !a.Repeated {
		t.Errorf("the same request: %s", a.text)
	}
	expect(t, reserveStock(t, url, 1, "r-1", 1), http.StatusUnprocessableEntity)
	if a := expect(t, reserveStock(t, url, 1, "r-2", 4), http.StatusBadRequest); !a.is("insufficient-stock") || a.Stock != 3 {
		t.Errorf("four of three: %s", a.text)
	}
	expect(t, reserveStock(t, url, 1, "", 1), http.StatusOK) // without a name each is another
	expect(t, reserveStock(t, url, 1, "", 1), http.StatusOK)
	expect(t, reserveStock(t, url, 2, "", 1), http.StatusNotFound)
	if a := expect(t, do(t, http.MethodPost, url+"/inventory/1/reserve?quantity=1", "", ""), http.StatusOK); a.Remaining != 0 {
		t.Errorf("the quantity in the query: %s", a.text)
	}
	if n := f.Int("SELECT stock FROM product"); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// testStockBusy: a reservation waits for its turn for five seconds, and has it when it comes.
func testStockBusy(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 5)")
	locks := f.client(holdfast.Config{})
	url := f.serve(locks, nil)
	lock := f.lock(locks, "inventory:1")
	begun := time.Now()
	a := expect(t, reserveStock(t, url, 1, "", 1), http.StatusServiceUnavailable)
	if took := time.Since(begun); took < orders.StockWait || !a.is("stock-busy") || a.header.Get("Retry-After") == "" {
		t.Errorf("after %s: %s", took, a.text)
	}
	for a.status != http.StatusOK { // on a very busy machine even this may take five seconds
		second := make(chan answer, 1)
		go func() { second <- reserveStock(t, url, 1, "", 1) }()
		for waiting := 0; waiting == 0 && len(second) == 0; {
			info, err := locks.Inspect(t.Context(), "inventory:1")
			if err != nil {
				t.Fatal(err)
			}
			waiting = len(info.Waiters)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a = <-second; a.status != http.StatusOK {
			expect(t, a, http.StatusServiceUnavailable)
			lock = f.lock(locks, "inventory:1")
		}
	}
}

// testEpoch: the locks move to a store whose tokens are smaller. Its writes are refused, with an answer that says why, until
// the epoch is raised. From then on those of the old store are refused.
func testEpoch(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 9)")
	before := start(t, "before", "--database", f.URL())
	forgotten := start(t, "forgotten", "--database", f.URL(), "--locks", "memory://")
	moved := start(t, "moved", "--database", f.URL(), "--locks", "memory://", "--epoch", "1")
	expect(t, reserveStock(t, before.url, 1, "", 1), http.StatusOK)
	if a := expect(t, reserveStock(t, forgotten.url, 1, "", 1), http.StatusServiceUnavailable); !a.is("another-epoch") {
		t.Errorf("moved without an epoch: %s", a.text)
	}
	expect(t, reserveStock(t, moved.url, 1, "", 1), http.StatusOK)
	if a := expect(t, reserveStock(t, before.url, 1, "", 1), http.StatusServiceUnavailable); !a.is("another-epoch") {
		t.Errorf("the old store after the move: %s", a.text)
	}
	if n := f.Int("SELECT stock FROM product"); n != 7 {
		t.Errorf("of 9 two were reserved, and %d are left", n)
	}
}

// testBadRequests: every refusal is a problem that says what is wrong.
func testBadRequests(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 5)")
	url := f.serve(f.client(holdfast.Config{}), nil)
	for _, c := range []struct {
		method, path, key, body string
		status                  int
		field                   string
	}{
		{"POST", "/inventory/1/reserve", "", ``, 400, "body"},
		{"POST", "/inventory/1/reserve", "", `{"quantity":0}`, 400, "quantity"},
		{"POST", "/inventory/1/reserve", "", `{"quantity":1000001}`, 400, "quantity"},
		{"POST", "/inventory/1/reserve", "", `{"quantity":1.5}`, 400, "quantity"},
		{"POST", "/inventory/1/reserve?quantity=0", "", ``, 400, "quantity"},
		{"POST", "/inventory/1/reserve?quantity=x", "", ``, 400, "quantity"},
		{"POST", "/inventory/1/reserve", "", `{"quantity":1,"price":0}`, 400, "body"},
		{"POST", "/inventory/1/reserve", strings.Repeat("k", 65), `{"quantity":1}`, 400, "Idempotency-Key"},
		{"POST", "/inventory/1/reserve", "", `{"quantity":1` + strings.Repeat(" ", 5000) + `}`, 413, ""},
		{"POST", "/inventory/x/reserve", "", `{"quantity":1}`, 400, "id"},
		{"POST", "/orders/0/process", "", ``, 400, "id"},
		{"GET", "/orders/99999999999999999999", "", ``, 400, "id"},
		{"GET", "/orders/1/process", "", ``, 405, ""},
		{"GET", "/", "", ``, 404, ""},
	} {
		a := do(t, c.method, url+c.path, c.key, c.body)
		if a.status != c.status || a.Field != c.field || a.Detail == "" || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s %.60s: %d %s", c.method, c.path, c.body, a.status, a.text)
		}
	}
	if n := f.Int("SELECT stock FROM product"); n != 5 {
		t.Errorf("bad requests have left %d", n)
	}
}

// testStart: the command refuses what it cannot use, and fills a database for a
// demonstration once.
func testStart(f *fixture) {
	t := f.t
	run := func(args ...string) error {
		return orders.Run(t.Context(), append([]string{"--listen", "127.0.0.1:0"}, args...), nil, io.Discard, io.Discard)
	}
	var bad *holdfast.InvalidError
	if err := run(); !errors.As(err, &bad) || bad.Field != "--database" {
		t.Errorf("without a database: %v", err)
	}
	if err := run("--database", f.URL(), "--ttl", "1ms"); !errors.As(err, &bad) || bad.Field != "ttl" {
		t.Errorf("a millisecond: %v", err)
	}
	if err := run("--database", f.URL(), "--epoch", "4294967296"); !errors.As(err, &bad) || bad.Field != "--epoch" {
		t.Errorf("too great an epoch: %v", err)
	}
	for range 2 {
		p := start(t, "demo", "--database", f.URL(), "--demo")
		expect(t, do(t, http.MethodGet, p.url+"/orders/9", "", ""), http.StatusOK)
		p.Terminate()
		if err := p.Wait(time.Minute); err != nil {
			t.Errorf("told to stop, it ended with %v: %s", err, p.Log())
		}
	}
	if n := f.Int("SELECT count(*) FROM orders"); n != 9 {
		t.Errorf("%d orders for a demonstration", n)
	}
	http.DefaultClient.CloseIdleConnections()
}
