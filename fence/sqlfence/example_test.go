package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/fence/sqlfence"
)

// The table belongs in a migration of the program.
func ExampleGuard_Schema() {
	guard, err := sqlfence.New(sqlfence.Postgres, sqlfence.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(guard.Schema())
	// Output: CREATE TABLE IF NOT EXISTS holdfast_fence (resource TEXT NOT NULL PRIMARY KEY, epoch BIGINT NOT NULL, token BIGINT NOT NULL)
}

// Do begins the transaction, checks the token, writes and commits.
func ExampleGuard_Do() { //nolint:testableexamples // it needs a database
	var db *sql.DB        // of the program
	var token fence.Token // lock.Token()
	ctx := context.Background()
	guard, err := sqlfence.New(sqlfence.Postgres, sqlfence.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = guard.Do(ctx, db, "stock:7", token, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE id = 7")
		return err
	})
	if errors.Is(err, fence.ErrStale) {
		fmt.Println("the lock has been granted to another client: nothing was written")
	}
}

// A program that begins its own transaction checks the token first in it.
func ExampleGuard_Check() { //nolint:testableexamples // it needs a database
	var tx *sql.Tx        // of the program, which commits it or rolls it back
	var token fence.Token // lock.Token()
	ctx := context.Background()
	guard, err := sqlfence.New(sqlfence.MySQL, sqlfence.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := guard.Check(ctx, tx, "stock:7", token); err != nil {
		fmt.Println(err, tx.Rollback())
		return
	}
	_, err = tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE id = 7")
	fmt.Println(errors.Join(err, tx.Commit()))
}

// CheckPgx takes a transaction of pgx, without database/sql. lock.Token() is the token.
func ExampleCheckPgx() { //nolint:testableexamples // it needs a database
	sell := func(ctx context.Context, guard *sqlfence.Guard, tx sqlfence.PgxTx[sqlfence.PgxTag, sqlfence.PgxRow], token fence.Token) error {
		if err := sqlfence.CheckPgx(ctx, guard, tx, "stock:7", token); err != nil {
			return errors.Join(err, tx.Rollback(ctx))
		}
		_, err := tx.Exec(ctx, "UPDATE stock SET n = n - 1 WHERE id = 7")
		return errors.Join(err, tx.Commit(ctx))
	}
	_ = sell // in a transaction that the program's pgxpool.Pool begins
}
