package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/fence/sqlfence"
)

//go:embed schema.sql
var schema string

// The states of an order.
const (
	StatusPending   = "pending"
	StatusCompleted = "completed" // charged, and taken from the stock
	StatusRejected  = "rejected"  // there was not enough
)

// Order is a customer's order of a product.
type Order struct {
	ID       int64  `json:"id"`
	Product  int64  `json:"product"`
	Quantity int    `json:"quantity"`
	Status   string `json:"status"`
}

// Reserved is what was taken from the stock.
type Reserved struct {
	Product   int64 `json:"product"`
	Quantity  int   `json:"quantity"`
	Remaining int   `json:"remaining_stock"`
	// Repeated is true when the request had been done before.
	Repeated bool `json:"repeated"`
}

var (
	// ErrNotFound: there is no such order or product.
	ErrNotFound = errors.New("not found")
	// ErrRequest: a request of this name asked for another quantity.
	ErrRequest = errors.New("the name of the request was used for another quantity")
)

// ProcessedError says that the order has been processed already.
type ProcessedError struct{ Order Order }

// Error names the order and its state.
func (e *ProcessedError) Error() string {
	return fmt.Sprintf("order %d is %s", e.Order.ID, e.Order.Status)
}

// StockError says that there is not enough stock.
type StockError struct {
	Product     int64
	Stock, Want int
}

// Error says how much there is.
func (e *StockError) Error() string {
	return fmt.Sprintf("of product %d there are %d, and not %d", e.Product, e.Stock, e.Want)
}

// Store is the database. Every write shows a token, and a stale token is refused in the
// transaction that writes. Its methods are safe for concurrent use.
type Store struct {
	db    *sql.DB
	guard *sqlfence.Guard
}

// OpenStore connects to a PostgreSQL and creates the tables if there are none. epoch is that of the locks' store: 0, and
// one more after each move to another.
func OpenStore(ctx context.Context, url string, epoch uint32) (*Store, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("the URL of the database: %w", err) // pgx leaves out the password
	}
	// An instance that is stopped within a transaction has rows locked. The server ends that
	// transaction, so that no other instance waits for it until it resumes.
	cfg.RuntimeParams["idle_in_transaction_session_timeout"] = "5s"
	cfg.RuntimeParams["statement_timeout"] = "15s"
	guard, err := sqlfence.New(sqlfence.Postgres, sqlfence.Config{Epoch: epoch})
	if err != nil {
		return nil, err
	}
	s := &Store{db: stdlib.OpenDB(*cfg), guard: guard}
	s.db.SetMaxOpenConns(10)
	if err := s.migrate(ctx); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	return s, nil
}

// Close ends the connections.
func (s *Store) Close() { _ = s.db.Close() }

// migrate creates the tables. CREATE TABLE IF NOT EXISTS fails when two do it concurrently, so
// the instances take turns.
func (s *Store) migrate(ctx context.Context) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock(hashtext('holdfast-example-orders'))"); err != nil {
			return fmt.Errorf("wait to make the tables: %w", err)
		}
		if _, err := tx.ExecContext(ctx, schema); err != nil {
			return fmt.Errorf("make the tables: %w", err)
		}
		return s.guard.Migrate(ctx, tx)
	})
}

// Demo fills an empty database.
func (s *Store) Demo(ctx context.Context) error {
	const fill = `WITH p AS (INSERT INTO product SELECT n, 10 * n FROM generate_series(1, 3) n ON CONFLICT DO NOTHING)
		INSERT INTO orders (id, product, quantity) SELECT n, 1 + n % 3, 4 FROM generate_series(1, 9) n ON CONFLICT DO NOTHING`
	if _, err := s.db.ExecContext(ctx, fill); err != nil {
		return fmt.Errorf("fill the database: %w", err)
	}
	return nil
}

// Order reads an order. Errors: ErrNotFound; the database's.
func (s *Store) Order(ctx context.Context, id int64) (Order, error) { return readOrder(ctx, s.db, id) }

// Stock reads how much there is of a product. Errors: ErrNotFound; the database's.
func (s *Store) Stock(ctx context.Context, product int64) (int, error) {
	return readStock(ctx, s.db, product)
}

// Pending reads an order to process it, and has the database record the token: from here on an
// earlier holder of the lock can write no more. Without that, the caller could still decide by
// data that a late write is about to change.
//
// Errors: ErrNotFound; *ProcessedError; those of Guard.Do.
func (s *Store) Pending(ctx context.Context, id int64, token fence.Token) (Order, error) {
	var o Order
	err := s.guard.Do(ctx, s.db, orderLock(id), token, func(tx *sql.Tx) error {
		var err error
		if o, err = readOrder(ctx, tx, id); err == nil && o.Status != StatusPending {
			err = &ProcessedError{o}
		}
		return err
	})
	return o, err
}

// Complete charges the order and takes it from the stock, or rejects it, all or nothing. It
// shows the tokens of both locks, because it writes data that both of them protect.
//
// Errors: *fence.StaleError, *ProcessedError: nothing was written; the database's.
func (s *Store) Complete(ctx context.Context, o Order, order, stock fence.Token) (Order, error) {
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.guard.Check(ctx, tx, orderLock(o.ID), order); err != nil {
			return err
		}
		if err := s.guard.Check(ctx, tx, stockLock(o.Product), stock); err != nil {
			return err
		}
		now, err := readOrder(ctx, tx, o.ID)
		switch {
		case err != nil:
			return err
		case now.Status != StatusPending:
			return &ProcessedError{now}
		}
		o.Status = StatusCompleted
		var few *StockError
		switch _, err := take(ctx, tx, o.Product, o.Quantity); {
		case errors.As(err, &few):
			o.Status = StatusRejected
		case err != nil:
			return err
		default:
			if err := exec(ctx, tx, "INSERT INTO charge (order_id, token) VALUES ($1, $2)", o.ID, order); err != nil {
				return err
			}
			if err := exec(ctx, tx, "INSERT INTO mail (order_id) VALUES ($1) ON CONFLICT DO NOTHING", o.ID); err != nil {
				return err
			}
		}
		return exec(ctx, tx, "UPDATE orders SET status = $2 WHERE id = $1", o.ID, o.Status)
	})
	if err != nil {
		return Order{}, err
	}
	return o, nil
}

// Reserve takes a quantity from the stock, once for each named request.
//
// Errors: *StockError, ErrRequest, ErrNotFound, *fence.StaleError: nothing was written; the
// database's.
func (s *Store) Reserve(ctx context.Context, product int64, quantity int, request string, token fence.Token) (Reserved, error) {
	r := Reserved{Product: product, Quantity: quantity}
	err := s.guard.Do(ctx, s.db, stockLock(product), token, func(tx *sql.Tx) error {
		before := 0
		err := tx.QueryRowContext(ctx, "SELECT quantity FROM reservation WHERE product = $1 AND request = $2", product, request).Scan(&before)
		switch {
		case err == nil && before != quantity:
			return ErrRequest
		case err == nil:
			r.Repeated = true
			r.Remaining, err = readStock(ctx, tx, product)
			return err
		case !errors.Is(err, sql.ErrNoRows):
			return fmt.Errorf("find request %q: %w", request, err)
		}
		if r.Remaining, err = take(ctx, tx, product, quantity); err != nil {
			return err
		}
		return exec(ctx, tx, "INSERT INTO reservation (product, quantity, request, token) VALUES ($1, $2, nullif($3, ''), $4)",
			product, quantity, request, token)
	})
	if err != nil {
		return Reserved{}, err
	}
	return r, nil
}

// take reads, decides and writes, which loses an update when two do it concurrently. That
// cannot happen here: the guard's row of the product is locked until the transaction ends.
func take(ctx context.Context, tx *sql.Tx, product int64, quantity int) (int, error) {
	stock, err := readStock(ctx, tx, product)
	if err != nil {
		return 0, err
	}
	if stock < quantity {
		return 0, &StockError{Product: product, Stock: stock, Want: quantity}
	}
	stock -= quantity
	return stock, exec(ctx, tx, "UPDATE product SET stock = $2 WHERE id = $1", product, stock)
}

func readOrder(ctx context.Context, q sqlfence.Tx, id int64) (Order, error) {
	o := Order{ID: id}
	err := q.QueryRowContext(ctx, "SELECT product, quantity, status FROM orders WHERE id = $1", id).Scan(&o.Product, &o.Quantity, &o.Status)
	return o, found(err, "order", id)
}

func readStock(ctx context.Context, q sqlfence.Tx, product int64) (int, error) {
	var stock int
	err := q.QueryRowContext(ctx, "SELECT stock FROM product WHERE id = $1", product).Scan(&stock)
	return stock, found(err, "product", product)
}

func found(err error, what string, id int64) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%s %d: %w", what, id, ErrNotFound)
	default:
		return fmt.Errorf("read %s %d: %w", what, id, err)
	}
}

func exec(ctx context.Context, tx *sql.Tx, query string, args ...any) error {
	if _, err := tx.ExecContext(ctx, query, args...); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func (s *Store) tx(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	if err := f(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}
