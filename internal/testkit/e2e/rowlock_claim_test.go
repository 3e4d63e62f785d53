package e2e_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/holdfast-io/holdfast/rowlock"
)

const claimJobs = 60

// queue creates a table of jobs, and one that counts how often each was done.
func (e rowEngine) queue() {
	e.exec("CREATE TABLE jobs (id INT PRIMARY KEY, state VARCHAR(10) NOT NULL, rank_ INT NOT NULL)")
	e.exec("CREATE TABLE done (id INT NOT NULL, worker INT NOT NULL)")
	e.exec("CREATE INDEX jobs_ready ON jobs (state, rank_)")
	for id := range claimJobs {
		e.exec(fmt.Sprintf("INSERT INTO jobs VALUES (%d, 'ready', %d)", id+1, claimJobs-id))
	}
	e.exec("INSERT INTO jobs VALUES (1000, 'other', 0)")
}

// round claims a batch, does it, and commits. between is called before that with the IDs; its error rolls everything back.
func (e rowEngine) round(ctx context.Context, worker int, between func([]int) error) (int, error) {
	where := "state = ?"
	if e.dialect == rowlock.Postgres {
		where = "state = $1"
	}
	l, err := rowlock.New(e.dialect, rowlock.Config{Table: "jobs", Key: "id"})
	if err != nil {
		return 0, err
	}
	// Read committed: at repeatable read InnoDB locks the gaps too.
	tx, err := e.begin(ctx, sql.LevelReadCommitted)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.rollback(context.WithoutCancel(ctx)) }()
	var ids []int
	n, err := l.Claim(ctx, tx.Tx, rowlock.Batch{Where: where, Args: []any{"ready"}, Order: []string{"rank_"}, Limit: 3, Scan: func(row rowlock.Row) error {
		var id int
		defer func() { ids = append(ids, id) }()
		return row.Scan(&id)
	}})
	if err != nil || n == 0 {
		return n, err
	}
	for _, id := range ids {
		err = errors.Join(err, tx.exec(ctx, fmt.Sprintf("INSERT INTO done VALUES (%d, %d)", id, worker)))
	}
	err = errors.Join(err, between(ids))
	for _, id := range ids {
		err = errors.Join(err, tx.exec(ctx, "UPDATE jobs SET state = 'done' WHERE id = "+strconv.Itoa(id)))
	}
	if err != nil {
		return n, err
	}
	return n, tx.commit(ctx)
}

// testClaimOrder: a claim returns the first rows by the order, no more than the limit, and two
// concurrent claims have different rows. Those of a worker that ends before its commit are claimed again, by others.
func testClaimOrder(e rowEngine) {
	t := e.t
	e.queue()
	died := errors.New("the worker has died")
	_, err := e.round(t.Context(), 1, func(first []int) error {
		_, err := e.round(t.Context(), 2, func(second []int) error {
			if fmt.Sprint(first, second) != "[60 59 58] [57 56 55]" {
				t.Errorf("the first has %v and the second %v", first, second)
			}
			return nil
		})
		return errors.Join(err, died)
	})
	if !errors.Is(err, died) {
		t.Error(err)
	}
	e.allDone(3)
	e.drain(3)
	e.allDone(claimJobs)
}

// allDone checks that n jobs were done, each once.
func (e rowEngine) allDone(n int) {
	e.t.Helper()
	want := fmt.Sprintf("%d %d", n, n)
	if s := e.text("SELECT CONCAT(COUNT(*), ' ', COUNT(DISTINCT id)) FROM done"); s != want {
		e.t.Errorf("jobs that were done, and different ones: %s; it has to be %s", s, want)
	}
}

// testClaimAll: many workers do every job once.
func testClaimAll(e rowEngine) {
	e.queue()
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() { e.drain(worker) })
	}
	wg.Wait()
	e.allDone(claimJobs)
}

// drain works until nothing is left.
func (e rowEngine) drain(worker int) {
	for {
		n, err := e.round(e.t.Context(), worker, func([]int) error { return nil })
		switch {
		case rowlock.Again(err):
		case err != nil:
			e.t.Error(err)
			return
		case n == 0:
			return
		}
	}
}
