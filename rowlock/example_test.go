package rowlock_test

import (
	"context"
	"fmt"

	"github.com/holdfast-io/holdfast/rowlock"
)

// shown is a transaction that shows its statements. A program passes rowlock.SQL(tx) or rowlock.Pgx(tx),
// with its own transaction.
type shown struct{}

// Query prints a statement and returns no rows.
func (shown) Query(_ context.Context, query string, args ...any) (emptyResult, error) {
	fmt.Println(query, args)
	return emptyResult{}, nil
}

// Commit ends the transaction.
func (shown) Commit(context.Context) error { return nil }

// Rollback ends the transaction.
func (shown) Rollback(context.Context) error { return nil }

// emptyResult is an empty result.
type emptyResult struct{}

func (emptyResult) Next() bool        { return false }
func (emptyResult) Scan(...any) error { return nil }
func (emptyResult) Err() error        { return nil }
func (emptyResult) Close()            {}

// A worker claims jobs that no other worker has: this is the one statement that Claim sends. The rows stay
// locked until the transaction ends.
func ExampleLocker_Claim() {
	jobs, err := rowlock.New(rowlock.Postgres, rowlock.Config{Table: "jobs", Key: "id"})
	if err != nil {
		fmt.Println(err)
		return
	}
	n, err := jobs.Claim(context.Background(), rowlock.Pgx(shown{}), rowlock.Batch{
		Limit: 10, Where: "state = $1", Args: []any{"ready"}, Order: []string{"created"}, Columns: []string{"id", "payload"},
		Scan: func(row rowlock.Row) error {
			var id int
			var payload string
			return row.Scan(&id, &payload)
		},
	})
	fmt.Println(n, err)
	// Output:
	// SELECT "id", "payload" FROM "jobs" WHERE (state = $1) ORDER BY "created" LIMIT $2 FOR UPDATE SKIP LOCKED [ready 10]
	// 0 <nil>
}

// Lock reads a row and locks it in one statement. A row that does not exist is an error.
func ExampleLocker_Lock() {
	tables, err := rowlock.New(rowlock.Postgres, rowlock.Config{Table: "tables", Key: "id"})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = tables.Lock(context.Background(), rowlock.Pgx(shown{}), rowlock.Request{
		Keys: []any{1}, Columns: []string{"reserved"},
		Scan: func(row rowlock.Row) error {
			var reserved bool
			return row.Scan(&reserved)
		},
	})
	fmt.Println(err)
	// Output:
	// SELECT "reserved" FROM "tables" WHERE "id" IN ($1) ORDER BY "id" FOR UPDATE [1]
	// row does not exist: 0 of 1 rows of table "tables" were found and locked
}
