package e2e_test

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"sync"

	"github.com/holdfast-io/holdfast/rowlock"
)

// errTaken is returned to a guest whose table is already reserved.
var errTaken = errors.New("the table is reserved")

// guest reserves table 1 as the document on tables in a bar describes it: read whether it is free,
// decide, write. read is how the guest reads, and decided is called between.
func (e rowEngine) guest(ctx context.Context, n int, read func(rowTransaction) (int, error), decided func()) error {
	tx, err := e.begin(ctx, sql.LevelDefault)
	if err != nil {
		return err
	}
	defer func() { _ = tx.rollback(ctx) }()
	reserved, err := read(tx)
	if err != nil {
		return err
	}
	if reserved != 0 {
		return errTaken
	}
	decided()
	if err := tx.exec(ctx, "UPDATE mesa SET reserved = "+strconv.Itoa(n)+" WHERE id = 1"); err != nil {
		return err
	}
	return tx.commit(ctx)
}

// reserve runs two guests concurrently and returns how many were told that they have the table.
func (e rowEngine) reserve(read func(rowTransaction) (int, error), decided func()) int {
	t := e.t
	t.Helper()
	var wg sync.WaitGroup
	told := make(chan error, 2)
	for n := range 2 {
		wg.Go(func() { told <- e.guest(t.Context(), n+1, read, decided) })
	}
	wg.Wait()
	close(told)
	have := 0
	for err := range told {
		switch {
		case err == nil:
			have++
		case !errors.Is(err, errTaken):
			t.Error(err)
		}
	}
	return have
}

// testLostUpdate: without a lock two guests get one table, as in the document.
func testLostUpdate(e rowEngine) {
	t := e.t
	var both sync.WaitGroup // each decides only when the other has read too
	both.Add(2)
	have := e.reserve(func(tx rowTransaction) (int, error) {
		s, err := tx.text(t.Context(), "SELECT reserved FROM mesa WHERE id = 1")
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(s)
	}, func() { both.Done(); both.Wait() })
	if have != 2 {
		t.Errorf("%d guests have the table: the anomaly has to show without a lock", have)
	}
}

// testNoLostUpdate: with the row locked as it is read, one guest gets the table and the other is
// told that it is taken.
func testNoLostUpdate(e rowEngine) {
	t := e.t
	for range 20 {
		e.exec("UPDATE mesa SET reserved = 0")
		have := e.reserve(func(tx rowTransaction) (int, error) {
			var reserved int
			_, err := e.tables().Lock(t.Context(), tx.Tx, rowlock.Request{
				Keys: []any{1}, Columns: []string{"reserved"}, Scan: func(row rowlock.Row) error { return row.Scan(&reserved) },
			})
			return reserved, err
		}, func() {})
		if have != 1 {
			t.Fatalf("%d guests have the table", have)
		}
	}
}

// testExplain: the deadlock occurs in the caller's own statements.
func testExplain(e rowEngine) {
	t := e.t
	one, other := e.tx(), e.tx()
	first := errors.Join(one.exec(t.Context(), "UPDATE mesa SET reserved = 1 WHERE id = 1"), other.exec(t.Context(), "UPDATE mesa SET reserved = 2 WHERE id = 2"))
	if first != nil {
		t.Fatal(first)
	}
	results := make(chan error, 2)
	ask := func(tx rowTransaction, q string) {
		err := rowlock.Explain(tx.exec(t.Context(), q))
		_ = tx.rollback(t.Context())
		results <- err
	}
	go ask(one, "UPDATE mesa SET reserved = 1 WHERE id = 2")
	go ask(other, "UPDATE mesa SET reserved = 2 WHERE id = 1")
	err := errors.Join(soon(t, results), soon(t, results))
	var failed *rowlock.LockError
	if !errors.Is(err, rowlock.ErrDeadlock) || !errors.As(err, &failed) || !failed.Over || !rowlock.Again(err) {
		t.Errorf("two updates that wait for each other: %v", err)
	}
	tx := e.tx()
	err = tx.exec(t.Context(), "SELECT nothing FROM nowhere")
	if got := rowlock.Explain(err); err == nil || !errors.Is(got, err) || errors.As(got, new(*rowlock.LockError)) || rowlock.Again(err) {
		t.Errorf("an error that is none of ours: %v", got)
	}
}
