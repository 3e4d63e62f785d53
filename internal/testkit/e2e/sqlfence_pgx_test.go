package e2e_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/fence/sqlfence"
)

// The guard checks in a transaction of pgx as in one of database/sql: a late write is refused and nothing
// of it remains, and what was rolled back is not remembered.
func TestPgx(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool, err := pgxpool.New(ctx, postgresDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	guard, err := sqlfence.New(sqlfence.Postgres, sqlfence.Config{Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, guard.Schema()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE stock (n INT NOT NULL); INSERT INTO stock VALUES (10)"); err != nil {
		t.Fatal(err)
	}
	undone := errors.New("undone")
	write := func(token fence.Token, n int, end error) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := sqlfence.CheckPgx(ctx, guard, tx, "stock:7", token); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "UPDATE stock SET n = $1", n); err != nil {
				return err
			}
			return end
		})
	}
	if err := write(40, 1, undone); !errors.Is(err, undone) {
		t.Fatal(err)
	}
	for _, token := range []fence.Token{33, 34, 34} {
		if err := write(token, int(token), nil); err != nil {
			t.Errorf("token %d: %v", token, err)
		}
	}
	err = write(33, 0, nil)
	if stale, ok := errors.AsType[*fence.StaleError](err); !ok || stale.Newest != 34 {
		t.Errorf("a late write: %v", err)
	}
	var n int
	if err := pool.QueryRow(ctx, "SELECT n FROM stock").Scan(&n); err != nil || n != 34 {
		t.Errorf("the stock is %d, %v", n, err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return sqlfence.CheckStampPgx(ctx, guard, tx, "stock:7", fence.Stamp{Epoch: 2, Token: 99})
	})
	if !errors.Is(err, fence.ErrEpoch) {
		t.Errorf("another epoch: %v", err)
	}
	other, err := sqlfence.New(sqlfence.MySQL, sqlfence.Config{})
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return sqlfence.CheckPgx(ctx, other, tx, "stock:7", 35) })
	if invalid, ok := errors.AsType[*fence.InvalidError](err); !ok || invalid.Field != "dialect" {
		t.Errorf("a guard of another dialect: %v", err)
	}
}
