// Package rowlock locks rows of PostgreSQL, MySQL and MariaDB within the caller's own transaction.
// If the thing to protect is a row, the best lock is the one of the database that stores it.
//
//	tables, err := rowlock.New(rowlock.Postgres, rowlock.Config{Table: "mesa", Key: "id"})
//	...
//	tx, err := db.BeginTx(ctx, nil)
//	...
//	defer tx.Rollback()
//	var reserved bool
//	_, err = tables.Lock(ctx, rowlock.SQL(tx), rowlock.Request{
//		Keys: []any{1}, Columns: []string{"reserved"}, Timeout: 2 * time.Second,
//		Scan: func(row rowlock.Row) error { return row.Scan(&reserved) },
//	})
//	if errors.Is(err, rowlock.ErrBusy) { ... } // another transaction has the row; this one can continue
//	// until tx ends no other transaction reads this row to write it
//
// If two transactions read a row, decide, and write it, one of the two writes is lost: the lost
// update. A lock that is acquired with the read and kept until the commit prevents it. Read the
// columns that you decide by with Columns, not with an earlier SELECT.
//
// A row lock needs no lease and no fencing token: it ends with the transaction, and a transaction
// that has ended writes nothing. It protects only the database. For anything outside the database
// use a lock of package holdfast.
//
// [Name] locks a name instead of a row, on PostgreSQL, for what has no row yet.
//
// [Locker.Claim] gives a worker the next rows that no other worker has: a job queue in a table.
//
// Names of tables and columns are quoted, and values are parameters. No input from outside becomes
// SQL, except [Batch].Where, which is the program's own text.
//
// The package imports no driver. MySQL's statements differ from MariaDB's in the words for a shared
// lock and in the time-out. MySQL has only one time-out for each session, which is set before and
// restored after. If the transaction is ended from elsewhere in between, for example by the end of
// the context that it was begun with, the connection returns to the pool with that time-out.
package rowlock
