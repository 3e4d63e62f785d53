package e2e_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/fence/sqlfence"
)

// A holder that was paused for too long writes with its old token. The transaction refuses it.
func Example_lateWriter() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sql.Open("sqlite", filepath.Join(dir, "stock.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	guard, err := sqlfence.New(sqlfence.SQLite, sqlfence.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := guard.Migrate(ctx, db); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE stock (id INTEGER PRIMARY KEY, n INTEGER); INSERT INTO stock VALUES (7, 10)"); err != nil {
		fmt.Println(err)
		return
	}

	for _, token := range []fence.Token{33, 34, 33} { // lock.Token() of two holders; the first one wakes late
		err := guard.Do(ctx, db, "stock:7", token, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE id = 7")
			return err
		})
		fmt.Println(token, errors.Is(err, fence.ErrStale))
	}
	var n int
	if err := db.QueryRowContext(ctx, "SELECT n FROM stock WHERE id = 7").Scan(&n); err != nil {
		fmt.Println(err)
	}
	fmt.Println(n, "left")
	// Output:
	// 33 false
	// 34 false
	// 33 true
	// 8 left
}
