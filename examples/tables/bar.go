package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-io/holdfast/rowlock"
)

//go:embed schema.sql
var schema string

// tries is how often a transaction is run which the database ended because of concurrent ones.
const tries = 5

// Reservation is a table that a guest has from one time to another.
type Reservation struct {
	ID    int64 `json:"id"`
	Table int64 `json:"mesaId"`
	Guest int64 `json:"usuarioId"`
	From  Time  `json:"dataReserva"`
	To    Time  `json:"ate"`
}

// Table is what guests sit at.
type Table struct {
	ID           int64 `json:"id"`
	Seats        int   `json:"lugares"`
	Reservations int   `json:"reservas"`
}

var (
	// ErrNoTable: there is no such table.
	ErrNoTable = errors.New("there is no such table")
	// ErrNoGuest: there is no such guest.
	ErrNoGuest = errors.New("there is no such guest")
	// ErrNoReservation: there is no such reservation of the table.
	ErrNoReservation = errors.New("there is no such reservation of this table")
	// ErrPast: the time has passed.
	ErrPast = errors.New("that time has passed")
	// ErrTaken: another guest has the table, for a part of the time at least.
	ErrTaken = errors.New("the table is reserved then")
)

// Bar is the restaurant's database. Its methods are safe for concurrent use.
type Bar struct {
	db     *sql.DB
	tables *rowlock.Locker
	stay   time.Duration
	wait   time.Duration
	now    func() time.Time // by the restaurant's clock
}

// Open connects to a PostgreSQL and creates the tables if there are none. Guests have a table
// for stay; a reservation waits for wait while another one of the same table is being made.
func Open(ctx context.Context, url string, stay, wait time.Duration) (*Bar, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("the URL of the database: %w", err) // pgx leaves out the password
	}
	// An instance that is stopped within a transaction has a row locked. The server ends that
	// transaction, so that no other instance waits for it until it resumes.
	cfg.RuntimeParams["idle_in_transaction_session_timeout"] = "5s"
	cfg.RuntimeParams["statement_timeout"] = "15s"
	tables, err := rowlock.New(rowlock.Postgres, rowlock.Config{Table: "mesa", Key: "id"})
	if err != nil {
		return nil, err
	}
	b := &Bar{db: stdlib.OpenDB(*cfg), tables: tables, stay: stay, wait: wait, now: wallClock}
	b.db.SetMaxOpenConns(10)
	if err := b.migrate(ctx); err != nil {
		return nil, errors.Join(err, b.db.Close())
	}
	return b, nil
}

// wallClock is the time of this machine's zone, without the zone, as Time has it.
func wallClock() time.Time {
	now := time.Now()
	_, offset := now.Zone()
	return now.UTC().Add(time.Duration(offset) * time.Second)
}

// Close ends the connections.
func (b *Bar) Close() { _ = b.db.Close() }

// migrate creates the tables. CREATE TABLE IF NOT EXISTS fails when two do it concurrently, so
// the instances take turns.
func (b *Bar) migrate(ctx context.Context) error {
	return b.tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock(hashtext('holdfast-example-tables'))"); err != nil {
			return fmt.Errorf("wait to make the tables: %w", err)
		}
		if _, err := tx.ExecContext(ctx, schema); err != nil {
			return fmt.Errorf("make the tables: %w", err)
		}
		return nil
	})
}

// Demo fills an empty database.
func (b *Bar) Demo(ctx context.Context) error {
	const fill = `WITH m AS (INSERT INTO mesa (id, lugares) VALUES (1, 2), (2, 4), (3, 8) ON CONFLICT DO NOTHING)
		INSERT INTO usuario VALUES (1, 'Ana'), (2, 'Bia') ON CONFLICT DO NOTHING`
	if _, err := b.db.ExecContext(ctx, fill); err != nil {
		return fmt.Errorf("fill the database: %w", err)
	}
	return nil
}

// Reserve gives the table to the guest from that time on.
//
// Errors: ErrPast, ErrNoTable, ErrNoGuest, ErrTaken; rowlock.ErrBusy: others are reserving this table,
// and nothing was written; the database's, of which that of a commit may mean either.
func (b *Bar) Reserve(ctx context.Context, table, guest int64, from time.Time) (Reservation, error) {
	var r Reservation
	if from.Before(b.now()) {
		return r, ErrPast
	}
	for n := 1; ; n++ {
		err := b.tx(ctx, func(tx *sql.Tx) error {
			var err error
			r, err = b.reserve(ctx, tx, table, guest, from)
			return err
		})
		if err == nil {
			return r, nil
		}
		if !rowlock.Again(err) || n == tries { // a deadlock, or a conflict: it was rolled back
			return Reservation{}, err
		}
	}
}

// reserve reads, decides and writes. The row of the table is locked when it is read, until the
// commit, so that the next transaction reads what this one has written. That transaction waits
// in the database, for b.wait at most, and its statements after the lock see what was committed
// while it waited (READ COMMITTED).
func (b *Bar) reserve(ctx context.Context, tx *sql.Tx, table, guest int64, from time.Time) (Reservation, error) {
	count := 0
	_, err := b.tables.Lock(ctx, rowlock.SQL(tx), rowlock.Request{
		Keys: []any{table}, Timeout: b.wait, Columns: []string{"reservas"}, Scan: func(row rowlock.Row) error { return row.Scan(&count) },
	})
	if errors.Is(err, rowlock.ErrMissing) {
		return Reservation{}, ErrNoTable
	}
	if err != nil {
		return Reservation{}, err
	}
	r := Reservation{Table: table, Guest: guest, From: Time{from}, To: Time{from.Add(b.stay)}}
	if err := check(ctx, tx, r); err != nil {
		return Reservation{}, err
	}
	err = tx.QueryRowContext(ctx, "INSERT INTO reserva (mesa_id, usuario_id, inicio, fim) VALUES ($1, $2, $3, $4) RETURNING id",
		table, guest, r.From.Time, r.To.Time).Scan(&r.ID)
	if err == nil {
		_, err = tx.ExecContext(ctx, "UPDATE mesa SET reservas = $2 WHERE id = $1", table, count+1)
	}
	if err != nil {
		return Reservation{}, fmt.Errorf("write the reservation: %w", rowlock.Explain(err))
	}
	return r, nil
}

// check decides whether the guest can have the table.
func check(ctx context.Context, tx *sql.Tx, r Reservation) error {
	var known, taken bool
	const ask = `SELECT EXISTS (SELECT FROM usuario WHERE id = $1),
		EXISTS (SELECT FROM reserva WHERE mesa_id = $2 AND inicio < $4 AND fim > $3)`
	err := tx.QueryRowContext(ctx, ask, r.Guest, r.Table, r.From.Time, r.To.Time).Scan(&known, &taken)
	switch {
	case err != nil:
		return fmt.Errorf("find the guest and the reservations: %w", rowlock.Explain(err))
	case !known:
		return ErrNoGuest
	case taken:
		return ErrTaken
	default:
		return nil
	}
}

// Table reads a table. Errors: ErrNoTable; the database's.
func (b *Bar) Table(ctx context.Context, id int64) (Table, error) {
	t := Table{ID: id}
	err := b.db.QueryRowContext(ctx, "SELECT lugares, reservas FROM mesa WHERE id = $1", id).Scan(&t.Seats, &t.Reservations)
	return t, or(err, ErrNoTable)
}

// Page is how many tables or reservations a list has at most.
const Page = 500

// Tables reads the first tables with an ID above after, in the order of their IDs. Errors: the database's.
func (b *Bar) Tables(ctx context.Context, after int64) ([]Table, error) {
	return list(ctx, b.db, func(rows *sql.Rows, t *Table) error { return rows.Scan(&t.ID, &t.Seats, &t.Reservations) },
		"SELECT id, lugares, reservas FROM mesa WHERE id > $1 ORDER BY id LIMIT $2", after, Page)
}

// Reservations reads the first reservations of a table that end after that time, in their order. Errors: ErrNoTable; the
// database's.
func (b *Bar) Reservations(ctx context.Context, table int64, after time.Time) ([]Reservation, error) {
	if _, err := b.Table(ctx, table); err != nil {
		return nil, err
	}
	return list(ctx, b.db, func(rows *sql.Rows, r *Reservation) error {
		r.Table = table
		return rows.Scan(&r.ID, &r.Guest, &r.From.Time, &r.To.Time)
	}, "SELECT id, usuario_id, inicio, fim FROM reserva WHERE mesa_id = $1 AND fim > $2 ORDER BY inicio LIMIT $3", table, after, Page)
}

func list[T any](ctx context.Context, db *sql.DB, scan func(*sql.Rows, *T) error, query string, args ...any) ([]T, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err reports it
	all := []T{}
	for rows.Next() {
		var one T
		if err := scan(rows, &one); err != nil {
			return nil, fmt.Errorf("list: %w", err)
		}
		all = append(all, one)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return all, nil
}

// Reservation reads a reservation of a table. Errors: ErrNoReservation; the database's.
func (b *Bar) Reservation(ctx context.Context, table, id int64) (Reservation, error) {
	r := Reservation{ID: id, Table: table}
	err := b.db.QueryRowContext(ctx, "SELECT usuario_id, inicio, fim FROM reserva WHERE id = $1 AND mesa_id = $2", id, table).
		Scan(&r.Guest, &r.From.Time, &r.To.Time)
	return r, or(err, ErrNoReservation)
}

// or returns missing where the row does not exist.
func or(err, missing error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrNoRows):
		return missing
	default:
		return fmt.Errorf("read: %w", err)
	}
}

func (b *Bar) tx(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	if err := f(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", rowlock.Explain(err))
	}
	return nil
}
