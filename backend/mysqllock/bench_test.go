package mysqllock_test

import (
	"context"
	"database/sql"
	"strconv"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/mysqllock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// BenchmarkPairs measures acquire and release of an uncontended lock.
func BenchmarkPairs(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run("goroutines="+strconv.Itoa(goroutines), func(b *testing.B) { benchmarkPairs(b, goroutines, false) })
	}
}

// BenchmarkHandOver measures one lock that many goroutines want all the time.
func BenchmarkHandOver(b *testing.B) {
	for _, goroutines := range []int{2, 50, 200} {
		b.Run("goroutines="+strconv.Itoa(goroutines), func(b *testing.B) { benchmarkPairs(b, goroutines, true) })
	}
}

func benchmarkPairs(b *testing.B, goroutines int, one bool) {
	b.Helper()
	s := testserver.MariaDB(b)
	v, err := mysqllock.Open(b.Context(), s.URL(), mysqllock.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = v.Close() }()
	status := func(name string) float64 {
		return float64(s.Int("SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = ?", name))
	}
	counts := []string{"QUESTIONS", "COM_COMMIT", "INNODB_ROW_LOCK_WAITS", "INNODB_DEADLOCKS", "INNODB_DATA_FSYNCS"}
	before := make([]float64, len(counts))
	for i, name := range counts {
		before[i] = status(name)
	}
	leasetest.BenchmarkPairs(b, v, goroutines, one, s.Process().CPU)
	for i, name := range counts {
		b.ReportMetric((status(name)-before[i])/float64(b.N), name+"/pair")
	}
}

// BenchmarkRawPairs measures the least that can be called a lock in a table: INSERT a row, DELETE
// it. No queue, no token, no session. It has as many connections as we have.
func BenchmarkRawPairs(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run("goroutines="+strconv.Itoa(goroutines), func(b *testing.B) {
			s := testserver.MariaDB(b)
			s.Exec(`CREATE TABLE raw (name VARBINARY(512) PRIMARY KEY, owner VARBINARY(64) NOT NULL) ENGINE=InnoDB`)
			db, err := sql.Open("mysql", s.DSN()+"?interpolateParams=true")
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			db.SetMaxOpenConns(8) //nolint:mnd // defaultConns
			db.SetMaxIdleConns(8) //nolint:mnd // defaultConns
			leasetest.Parallel(b, goroutines, s.Process().CPU, func(ctx context.Context, name string) error {
				id := string(backend.NewLeaseID())
				if _, err := db.ExecContext(ctx, `INSERT INTO raw VALUES (?, ?)`, name, id); err != nil {
					return err
				}
				_, err := db.ExecContext(ctx, `DELETE FROM raw WHERE name = ? AND owner = ?`, name, id)
				return err
			})
		})
	}
}
