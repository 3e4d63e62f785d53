package main_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

const (
	clients     = 200
	orderCount  = 60  // two clients want each
	orderBuyers = 120 // the other eighty reserve
	enough      = 1000
	scarce      = 40 // of product 1, of which seventy are wanted
)

// testFleet: 200 clients at three instances, of which one is killed, and another is stopped
// while it holds a lock until its lease has ended and another instance has done its work; then
// it resumes. Every client retries until there is an answer. In the end everything is counted.
func testFleet(f *fixture) {
	t := f.t
	leasetest.Slow(t)
	f.Exec(fmt.Sprintf("INSERT INTO product VALUES (1, %d), (2, %d)", scarce, enough),
		fmt.Sprintf("INSERT INTO orders (id, product, quantity) SELECT n, 1 + n %% 2, 1 FROM generate_series(1, %d) n", orderCount),
		fmt.Sprintf("INSERT INTO orders (id, product, quantity) VALUES (%d, 2, 1)", stuckOrder),
		"CREATE TABLE seen (product bigint, before int, after int)",
		`CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO seen VALUES (NEW.id, OLD.stock, NEW.stock); RETURN NULL; END'`,
		"CREATE TRIGGER note AFTER UPDATE ON product FOR EACH ROW EXECUTE FUNCTION note()",
	)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var fleet []*testserver.Process
	r := run{faults: make(chan struct{})}
	for _, name := range []string{"one", "two", "three"} {
		p, url := testserver.Service(t, "--name", name, "--database", f.URL(), "--ttl", "6s")
		fleet, r.urls = append(fleet, p), append(r.urls, url)
	}
	locks := f.client()
	done := make(chan struct{})
	go func() { r.all(ctx); close(done) }()
	for r.answered.Load() < 20 && ctx.Err() == nil { // it is running
		pause(ctx)
	}
	fleet[1].Kill()
	stuck := make(chan answer, 1)
	ask := func() {
		a, _ := r.process(ctx, 2, stuckOrder) // it may be cut off: that is no answer
		stuck <- a
	}
	holder := func() string { // of the order
		info, err := locks.Inspect(ctx, fmt.Sprint("order:", stuckOrder))
		if err != nil {
			t.Fatal(err)
		}
		if len(info.Holders) == 0 {
			return ""
		}
		return info.Holders[0].Owner
	}
	go ask()
	for holder() != "three" {
		if len(stuck) > 0 { // the machine is so busy that the request had ended before
			<-stuck
			go ask()
		}
		pause(ctx)
	}
	fleet[2].Stop()
	close(r.faults) // the other half begins
	for holder() == "three" {
		pause(ctx)
	}
	r.until(ctx, func(int) (answer, error) { return r.process(ctx, 0, stuckOrder) })
	fleet[2].Cont()
	if a := <-stuck; a.Status == http.StatusOK {
		t.Errorf("whoever slept past its lease wakes and says %s", a.Text)
	}
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
	}
	testserver.Do[body](t, http.MethodGet, r.urls[2]+"/orders/1", "").Expect(t, http.StatusOK, "") // after its sleep
	f.judge(&r)
}

// pause keeps clients that retry from doing nothing else.
func pause(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	<-ctx.Done()
}

// run is what the clients do, and the answers that they got.
type run struct {
	urls   []string
	faults chan struct{} // closed when the faults have happened

	charged  [orderCount + 1]atomic.Int64 // answers that said so
	reserved [clients]atomic.Bool
	answered atomic.Int64
}

// all lets every client ask until it has an answer. One half begins after the faults. Buyers i and i+60 want the same order.
func (r *run) all(ctx context.Context) {
	testserver.Together(clients, func(i int) {
		if i%2 == 1 {
			select {
			case <-r.faults:
			case <-ctx.Done():
			}
		}
		if i >= orderBuyers {
			a := r.until(ctx, func(n int) (answer, error) {
				url := fmt.Sprintf("%s/inventory/%d/reserve", r.urls[(i+n)%3], 1+i/2%2)
				return testserver.Ask[body](ctx, http.MethodPost, url, `{"quantity":1}`, "Idempotency-Key", "client-"+strconv.Itoa(i))
			})
			r.reserved[i].Store(a.Status == http.StatusOK)
			return
		}
		id := 1 + i%orderCount
		if a := r.until(ctx, func(n int) (answer, error) { return r.process(ctx, (i+n)%3, id) }); a.Status == http.StatusOK {
			r.charged[id].Add(1)
		}
	})
}

// process has an instance process an order.
func (r *run) process(ctx context.Context, instance, id int) (answer, error) {
	return testserver.Ask[body](ctx, http.MethodPost, fmt.Sprintf("%s/orders/%d/process", r.urls[instance], id), "")
}

// until sends requests, to another instance each time, until the answer is yes or no.
func (r *run) until(ctx context.Context, ask func(n int) (answer, error)) answer {
	for n := 0; ctx.Err() == nil; n++ {
		a, err := ask(n)
		if err == nil && (a.Status == http.StatusOK || a.Status == http.StatusBadRequest) {
			r.answered.Add(1)
			return a
		}
		pause(ctx)
	}
	return answer{}
}

// judge counts.
func (f *fixture) judge(r *run) {
	t := f.t
	t.Helper()
	if n := r.answered.Load(); n != clients+1 {
		t.Fatalf("%d of %d clients have an answer", n, clients+1)
	}
	for what, n := range map[string]int64{
		"orders that are pending":              f.Int("SELECT count(*) FROM orders WHERE status = 'pending'"),
		"orders charged more or less than due": f.Int("SELECT count(*) FROM orders o WHERE (SELECT count(*) FROM charge c WHERE c.order_id = o.id) <> (o.status = 'completed')::int"),
		"requests done twice":                  f.Int("SELECT count(*) - count(DISTINCT request) FROM reservation"),
		"times the stock was negative":         f.Int("SELECT count(*) FROM seen WHERE after < 0"),
		"updates of stock that were lost":      f.Int("SELECT count(*) - count(DISTINCT (product, after)) FROM seen"),
		"left of the scarce product":           f.Int("SELECT stock FROM product WHERE id = 1"),
	} {
		if n != 0 {
			t.Errorf("%s: %d", what, n)
		}
	}
	const sold = "SELECT (SELECT count(*) FROM charge c JOIN orders o ON o.id = c.order_id WHERE o.product = $1) + (SELECT count(*) FROM reservation WHERE product = $1)"
	if n := f.Int(sold, 1); n != scarce {
		t.Errorf("of %d there are, %d were sold", scarce, n)
	}
	everybody := int64(orderCount/2 + (clients-orderBuyers)/2 + 1)
	if n, left := f.Int(sold, 2), f.Int("SELECT stock FROM product WHERE id = 2"); n != everybody || left != enough-everybody {
		t.Errorf("%d wanted the other product, %d have it, and %d of %d are left", everybody, n, left, enough)
	}
	for id := range r.charged {
		if n := r.charged[id].Load(); n > 1 {
			t.Errorf("%d clients were told that order %d is processed by them", n, id)
		}
	}
	for i := orderBuyers; i < clients; i++ {
		rows := f.Int("SELECT count(*) FROM reservation WHERE request = $1", "client-"+strconv.Itoa(i))
		if told := r.reserved[i].Load(); (rows == 1) != told {
			t.Errorf("client %d was told %t and has %d", i, told, rows)
		}
	}
}
