package main_test

import (
	"errors"
	"sync"
	"time"

	tables "github.com/holdfast-io/holdfast/examples/tables"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/rowlock"
)

// How a guest's transaction reads table 1.
const (
	plain     = ""
	shared    = " FOR SHARE" // as the document offers too
	exclusive = " FOR UPDATE"
)

// guest reserves as the document does: read, check whether another guest has that very time,
// write. decided is called between. counted says whether the row of the table is written too.
func (f *fixture) guest(guest int, how string, counted bool, decided func()) error {
	ctx := f.t.Context()
	tx, err := f.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	n, taken := 0, false
	if err := tx.QueryRowContext(ctx, "SELECT reservas FROM mesa WHERE id = 1"+how).Scan(&n); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT FROM reserva WHERE mesa_id = 1 AND inicio = $1)", evening).Scan(&taken); err != nil {
		return err
	}
	decided()
	if taken {
		return tables.ErrTaken
	}
	const write = "INSERT INTO reserva (mesa_id, usuario_id, inicio, fim) VALUES (1, $1, $2, $2::timestamp + '2 hours')"
	if _, err := tx.ExecContext(ctx, write, guest, evening); err != nil {
		return rowlock.Explain(err)
	}
	if counted {
		if _, err := tx.ExecContext(ctx, "UPDATE mesa SET reservas = $1 WHERE id = 1", n+1); err != nil {
			return rowlock.Explain(err)
		}
	}
	return tx.Commit()
}

// two guests decide when both have read.
func (f *fixture) two(how string, counted bool) []error {
	var decided sync.WaitGroup
	decided.Add(2)
	errs := make([]error, 2)
	testserver.Together(2, func(i int) { errs[i] = f.guest(i+1, how, counted, func() { decided.Done(); decided.Wait() }) })
	return errs
}

// testLostUpdate: without a lock two guests have one table, and one of the two was not counted.
func testLostUpdate(f *fixture) {
	t := f.t
	if errs := f.two(plain, true); errors.Join(errs...) != nil {
		t.Errorf("without a lock both are told yes, not %v", errs)
	}
	f.count(2, 1)
}

// testShareLetsBothWrite: FOR SHARE does not prevent another FOR SHARE. The document's
// reservation is a row of another table, so both write theirs, and nothing is noticed.
func testShareLetsBothWrite(f *fixture) {
	t := f.t
	if errs := f.two(shared, false); errors.Join(errs...) != nil {
		t.Errorf("with FOR SHARE both are told yes, not %v", errs)
	}
	f.count(2, 0)
}

// testShareDeadlocks: where the row that was read FOR SHARE is written, the update is not lost:
// each waits for the other, the database ends one of them, and that one runs again.
func testShareDeadlocks(f *fixture) {
	t := f.t
	errs := f.two(shared, true)
	if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs...), rowlock.ErrDeadlock) || !rowlock.Again(errors.Join(errs...)) {
		t.Fatalf("one has the table, and one met a deadlock: %v", errs)
	}
	f.count(1, 1)
	if err := f.guest(3, shared, true, func() {}); !errors.Is(err, tables.ErrTaken) {
		t.Errorf("run again, the other one is told %v", err)
	}
	f.count(1, 1)
}

// testUpdateWaits: with FOR UPDATE, which Reserve takes, the second cannot read before the first
// has committed, and reads what that has written.
func testUpdateWaits(f *fixture) {
	t := f.t
	bar := f.open(patience)
	at, err := time.Parse("2006-01-02T15:04:05", evening)
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	err = f.guest(1, exclusive, true, func() {
		go func() {
			_, err := bar.Reserve(t.Context(), 1, 2, at)
			second <- err
		}()
		for f.Int("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 0 && len(second) == 0 {
			continue
		}
		if len(second) > 0 {
			t.Fatalf("the second did not wait: %v", <-second)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-second; !errors.Is(err, tables.ErrTaken) {
		t.Errorf("the second is told %v", err)
	}
	f.count(1, 1)
}
