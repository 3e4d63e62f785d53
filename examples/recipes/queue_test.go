package recipes_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-io/holdfast/examples/recipes"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/rowlock"
)

// Six workers, of which one fails now and then, do forty jobs, each once.
func TestQueue(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) recipes.Queue{
		"postgres": func(t *testing.T) recipes.Queue {
			t.Helper()
			return recipes.Queue{DB: database(t, "pgx", testserver.Postgres(t).URL()), Dialect: rowlock.Postgres}
		},
		"mariadb": func(t *testing.T) recipes.Queue {
			t.Helper()
			return recipes.Queue{DB: database(t, "mysql", testserver.MariaDB(t).DSN()), Dialect: rowlock.MariaDB}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const jobs, workers = 40, 6
			q := start(t)
			for _, stmt := range []string{
				"CREATE TABLE jobs (id INT PRIMARY KEY, state VARCHAR(10) NOT NULL)", "CREATE INDEX jobs_ready ON jobs (state, id)",
				"CREATE TABLE done (job INT NOT NULL)",
			} {
				execute(t, q.DB, stmt)
			}
			for id := range jobs {
				execute(t, q.DB, fmt.Sprintf("INSERT INTO jobs VALUES (%d, 'ready')", id))
			}
			errFails := errors.New("this one fails")
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() {
					for round := 0; ; round++ {
						n, err := q.Work(t.Context(), 3, func(ctx context.Context, tx *sql.Tx, job int) error {
							if w == 0 && round < 3 {
								return errFails
							}
							_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO done VALUES (%d)", job))
							return err
						})
						switch {
						case errors.Is(err, errFails), rowlock.Again(err):
						case err != nil:
							t.Error(err)
							return
						case n == 0:
							return
						}
					}
				})
			}
			wg.Wait()
			if done := numbers(t, q.DB, "SELECT job FROM done ORDER BY job"); len(done) != jobs || len(slices.Compact(done)) != jobs {
				t.Errorf("done: %v", done)
			}
		})
	}
}

func database(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func execute(t *testing.T, db *sql.DB, stmt string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), stmt); err != nil {
		t.Fatalf("%s: %v", stmt, err)
	}
}

func numbers(t *testing.T, db *sql.DB, query string) []int {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var all []int
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
