// Package rowlock locks rows of PostgreSQL, MySQL and MariaDB within the caller's own
// transaction: where what is to be kept from others is a row, the database that has it
// keeps the best lock.
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
//	if errors.Is(err, rowlock.ErrBusy) { ... } // somebody is at it; the transaction can go on
//	// until tx ends nobody else reads this row to write it
//
// Two who read a row, decide, and write it lose one of the two writes: the lost update.
// A lock that is taken with the read, and kept until the commit, is what prevents it. Read
// what you decide by with Columns, not by a SELECT before.
//
// A row lock needs no lease and no fencing token: it ends with the transaction, and a
// transaction that was ended writes nothing. It does not go further than the database. For
// what is outside of it take a lock of package holdfast.
//
// [Locker.Claim] gives a worker the next rows that no other worker has: a queue in a
// table.
//
// Names of tables and columns are quoted, values are parameters: nothing that comes from
// outside becomes SQL, but for [Batch].Where, which is the program's own text.
//
// The package imports no driver. MySQL's statements differ from MariaDB's in the words
// for a shared lock and in the time-out: MySQL has one for each session only, which is set
// before and set back after; when the transaction is ended from elsewhere in between, as by
// the end of the context that it was begun with, the connection goes back to the pool with
// it.
package rowlock
