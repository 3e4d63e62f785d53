package main_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-io/holdfast"
	orders "github.com/holdfast-io/holdfast/examples/orders"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// document is the code of the document on this database: read the stock, check whether it is
// enough, write what is left; and an order that is charged, taken from the stock and marked.
type document struct {
	db *sql.DB
}

// take is what its process_order and its reserve_inventory do to the stock. meanwhile is called
// between the read and the write.
func (d document) take(ctx context.Context, product int, meanwhile func()) error {
	var stock int
	if err := d.db.QueryRowContext(ctx, "SELECT stock FROM product WHERE id = $1", product).Scan(&stock); err != nil {
		return err
	}
	meanwhile()
	if stock < 1 {
		return errors.New("insufficient stock")
	}
	if _, err := d.db.ExecContext(ctx, "UPDATE product SET stock = $2 WHERE id = $1", product, stock-1); err != nil {
		return err
	}
	_, err := d.db.ExecContext(ctx, "INSERT INTO reservation (product, quantity, token) VALUES ($1, 1, 0)", product)
	return err
}

// process charges the order. paused is called when it has been found to be pending.
func (d document) process(ctx context.Context, id int, paused func()) error {
	var status string
	if err := d.db.QueryRowContext(ctx, "SELECT status FROM orders WHERE id = $1", id).Scan(&status); err != nil {
		return err
	}
	if status != orders.StatusPending {
		return errors.New("order already processed")
	}
	paused()
	if _, err := d.db.ExecContext(ctx, "INSERT INTO charge (order_id, token) VALUES ($1, 0)", id); err != nil {
		return err
	}
	_, err := d.db.ExecContext(ctx, "UPDATE orders SET status = 'completed' WHERE id = $1", id)
	return err
}

// testWithoutLock: two servers find one piece in stock, and both sell it.
func testWithoutLock(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 1)")
	var read sync.WaitGroup
	read.Add(2)
	testserver.Together(2, func(int) {
		if err := (document{f.db}).take(t.Context(), 1, func() { read.Done(); read.Wait() }); err != nil {
			t.Error(err)
		}
	})
	if n := f.Int("SELECT count(*) FROM reservation"); n != 2 {
		t.Errorf("%d have the one piece: without a lock the fault has to show", n)
	}
}

// testTwoLocksForOneRow: the document's orders take from the stock under the lock of the
// order, and its reservations under the lock of the product: each has its lock, and one
// update is lost. Ours take the product's lock for both.
func testTwoLocksForOneRow(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 1), (2, 1)", "INSERT INTO orders (id, product, quantity) VALUES (7, 2, 1)")
	locks := f.client()
	var read sync.WaitGroup
	read.Add(2)
	testserver.Together(2, func(i int) {
		err := locks.Do(t.Context(), []string{"order:5", "inventory:1"}[i], func(ctx context.Context, _ *holdfast.Lock) error {
			return document{f.db}.take(ctx, 1, func() { read.Done(); read.Wait() })
		})
		if err != nil {
			t.Error(err)
		}
	})
	if n := f.Int("SELECT count(*) FROM reservation WHERE product = 1"); n != 2 {
		t.Errorf("%d have the one piece: two locks for one row have to show the fault", n)
	}

	url := f.serve(locks, nil)
	var wg sync.WaitGroup
	var a, b answer
	wg.Go(func() { a = processOrder(t, url, 7) })
	wg.Go(func() { b = reserveStock(t, url, 2, "", 1) })
	wg.Wait()
	if (a.Status == http.StatusOK) == (b.Status == http.StatusOK) || a.Status+b.Status != http.StatusOK+http.StatusBadRequest {
		t.Errorf("the order: %d %s; the reservation: %d %s", a.Status, a.Text, b.Status, b.Text)
	}
	if n := f.Int("SELECT (SELECT count(*) FROM charge) + (SELECT count(*) FROM reservation WHERE product = 2)"); n != 1 {
		t.Errorf("%d have the one piece", n)
	}
}

// testLockIsNotEnough: the document's lock has an end, it is not renewed, and nothing checks
// it: a server that sleeps past that end charges an order that another has charged.
func testLockIsNotEnough(f *fixture) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 9)", "INSERT INTO orders (id, product, quantity) VALUES (5, 1, 1)")
	locks := f.client()
	lock := func() *holdfast.Lock {
		l, err := locks.Acquire(t.Context(), "order:5", holdfast.TTL(3*time.Second), holdfast.NoRenew())
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	lock()
	err := document{f.db}.process(t.Context(), 5, func() {
		second := lock() // it waits until the time of the first has passed
		if err := (document{f.db}).process(t.Context(), 5, func() {}); err != nil {
			t.Error(err)
		}
		_ = second.Release(t.Context())
	})
	if n := f.Int("SELECT count(*) FROM charge"); err != nil || n != 2 {
		t.Errorf("charged %d times (%v): without a token the fault has to show", n, err)
	}
}

// testToken is the same with the token, step by step: a server that slept past its lease writes
// nothing, whether the next one has written already, or has only read.
func testToken(f *fixture, written bool) {
	t := f.t
	f.Exec("INSERT INTO product VALUES (1, 9)", "INSERT INTO orders (id, product, quantity) VALUES (5, 1, 1)")
	locks := f.client()
	pending := func() (orders.Order, fence.Token) {
		token := f.lock(locks, "order:5").Token()
		o, err := f.store.Pending(t.Context(), 5, token)
		if err != nil {
			t.Fatal(err)
		}
		return o, token
	}
	_, first := pending()
	f.end(locks, "order:5") // it sleeps, and its lease ends
	o, second := pending()
	complete := func(token fence.Token) error {
		defer f.end(locks, "inventory:1")
		_, err := f.store.Complete(t.Context(), o, token, f.lock(locks, "inventory:1").Token())
		return err
	}
	var err error
	if written {
		err = complete(second)
	}
	if late := complete(first); err != nil || !errors.Is(late, fence.ErrStale) {
		t.Errorf("the second: %v; the first, late: %v", err, late)
	}
	if !written {
		err = complete(second)
	}
	if charges, left := f.Int("SELECT count(*) FROM charge"), f.Int("SELECT stock FROM product"); err != nil || charges != 1 || left != 8 {
		t.Errorf("charged %d times (%v), and of nine %d are left", charges, err, left)
	}
}

func (f *fixture) lock(locks *holdfast.Client, name string) *holdfast.Lock {
	f.t.Helper()
	l, err := locks.TryAcquire(f.t.Context(), name)
	if err != nil {
		f.t.Fatal(err)
	}
	return l
}

// end ends the lease that is held, as its expiry would.
func (f *fixture) end(locks *holdfast.Client, name string) {
	f.t.Helper()
	if _, err := locks.Break(f.t.Context(), name, "its lease has expired"); err != nil {
		f.t.Fatal(err)
	}
}
