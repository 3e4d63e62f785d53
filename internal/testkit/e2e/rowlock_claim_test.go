package e2e_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

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

func claimer(d rowlock.Dialect) (*rowlock.Locker, rowlock.Batch, error) {
	l, err := rowlock.New(d, rowlock.Config{Table: "jobs", Key: "id"})
	where := "state = ?"
	if d == rowlock.Postgres {
		where = "state = $1"
	}
	return l, rowlock.Batch{Where: where, Args: []any{"ready"}, Order: []string{"rank_"}, Limit: 3}, err
}

// round claims a batch, does it, and commits; between is called before the commit.
func (e rowEngine) round(ctx context.Context, worker int, between func([]int)) (int, error) {
	l, batch, err := claimer(e.dialect)
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
	batch.Scan = func(row rowlock.Row) error {
		var id int
		defer func() { ids = append(ids, id) }()
		return row.Scan(&id)
	}
	n, err := l.Claim(ctx, tx.Tx, batch)
	if err != nil || n == 0 {
		return n, err
	}
	between(ids)
	for _, id := range ids {
		err = errors.Join(err,
			tx.exec(ctx, fmt.Sprintf("INSERT INTO done VALUES (%d, %d)", id, worker)),
			tx.exec(ctx, "UPDATE jobs SET state = 'done' WHERE id = "+strconv.Itoa(id)))
	}
	return n, errors.Join(err, tx.commit(ctx))
}

// testClaimOrder: a claim returns the first rows by the order, no more than the limit, and two
// concurrent claims have different rows.
func testClaimOrder(e rowEngine) {
	t := e.t
	e.queue()
	_, err := e.round(t.Context(), 1, func(first []int) {
		_, err := e.round(t.Context(), 2, func(second []int) {
			if fmt.Sprint(first, second) != "[60 59 58] [57 56 55]" {
				t.Errorf("the first has %v and the second %v", first, second)
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Error(err)
	}
	e.allDone(6)
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
		n, err := e.round(e.t.Context(), worker, func([]int) {})
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

// testClaimDeadWorker: a worker in a process of its own is killed while it has jobs. Other workers
// do them, once.
func testClaimDeadWorker(e rowEngine) {
	t := e.t
	e.queue()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "ROWLOCK_WORKER="+strconv.Itoa(int(e.dialect)), "ROWLOCK_DRIVER="+e.driver, "ROWLOCK_DSN="+e.dsn)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "[60 59 58]\n" {
		t.Fatalf("the worker has %q, %v", line, err)
	}
	if _, err := e.round(t.Context(), 2, func(ids []int) {
		if fmt.Sprint(ids) != "[57 56 55]" {
			t.Errorf("while the worker has the first three another gets %v", ids)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	e.drain(3)
	// The database may need a moment to see that the worker has died.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); e.text("SELECT COUNT(*) FROM jobs WHERE state = 'ready'") != "0" && time.Now().Before(end); <-tick.C {
		e.drain(3)
	}
	e.allDone(claimJobs)
}

func isClaimWorker() bool { return os.Getenv("ROWLOCK_WORKER") != "" }

// claimWorker is the worker's program: it claims, records that it did the work, reports that, and waits to
// be killed before it commits.
func claimWorker() {
	err := func() error {
		d, err := strconv.Atoi(os.Getenv("ROWLOCK_WORKER"))
		if err != nil {
			return err
		}
		db, err := sql.Open(os.Getenv("ROWLOCK_DRIVER"), os.Getenv("ROWLOCK_DSN"))
		if err != nil {
			return err
		}
		tx, err := db.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		l, batch, err := claimer(rowlock.Dialect(d))
		if err != nil {
			return err
		}
		var ids []int
		batch.Scan = func(row rowlock.Row) error {
			var id int
			defer func() { ids = append(ids, id) }()
			return row.Scan(&id)
		}
		if _, err := l.Claim(context.Background(), rowlock.SQL(tx), batch); err != nil {
			return err
		}
		for _, id := range ids {
			if _, err := tx.ExecContext(context.Background(), "INSERT INTO done VALUES ("+strconv.Itoa(id)+", 1)"); err != nil {
				return err
			}
		}
		fmt.Println(ids)
		_, err = io.Copy(io.Discard, os.Stdin) // ends with the test
		return err
	}()
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
