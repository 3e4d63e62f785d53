package pglock_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// value returns a backend with a session.
func value(b *testing.B, s *testserver.PostgresServer) (*pglock.Backend, backend.SessionID) {
	b.Helper()
	v, err := pglock.Open(b.Context(), s.URL(), pglock.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = v.Close() })
	id := backend.NewSessionID()
	if err := v.OpenSession(b.Context(), backend.SessionRequest{ID: id, TTL: time.Hour}); err != nil {
		b.Fatal(err)
	}
	return v, id
}

// BenchmarkPairs measures acquire and release of an uncontended lock.
func BenchmarkPairs(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		b.Run("goroutines="+strconv.Itoa(goroutines), func(b *testing.B) {
			s := testserver.Postgres(b)
			v, _ := value(b, s)
			leasetest.BenchmarkPairs(b, v, goroutines, false, s.Process().CPU)
		})
	}
}

// BenchmarkOneLock measures one lock that 50 goroutines want all the time.
func BenchmarkOneLock(b *testing.B) {
	s := testserver.Postgres(b)
	v, _ := value(b, s)
	leasetest.BenchmarkPairs(b, v, 50, true, s.Process().CPU) //nolint:mnd // as in the bench
}

// BenchmarkRawPairs measures the least that can be called a lock in a table: INSERT a row, DELETE
// it. No queue, no token, no session. It has as many connections as goroutines.
func BenchmarkRawPairs(b *testing.B) {
	for _, goroutines := range []int{1, 64} {
		for _, conns := range []int{8, 64} {
			b.Run("goroutines="+strconv.Itoa(goroutines)+"/conns="+strconv.Itoa(conns), func(b *testing.B) {
				s := testserver.Postgres(b)
				s.Exec(`CREATE TABLE raw (name text PRIMARY KEY, owner text NOT NULL)`)
				pool, err := pgxpool.New(b.Context(), s.URL()+"&pool_max_conns="+strconv.Itoa(conns))
				if err != nil {
					b.Fatal(err)
				}
				defer pool.Close()
				leasetest.Parallel(b, goroutines, s.Process().CPU, func(ctx context.Context, name string) error {
					id := string(backend.NewLeaseID())
					if _, err := pool.Exec(ctx, `INSERT INTO raw VALUES ($1, $2)`, name, id); err != nil {
						return err
					}
					_, err := pool.Exec(ctx, `DELETE FROM raw WHERE name = $1 AND owner = $2`, name, id)
					return err
				})
			})
		}
	}
}

// BenchmarkHandOver measures one lock that passes between two values, each of which waits for it
// in turn: from the call of Release until the other value has it.
func BenchmarkHandOver(b *testing.B) {
	s := testserver.Postgres(b)
	one, oneID := value(b, s)
	two, twoID := value(b, s)
	values, ids := []*pglock.Backend{one, two}, []backend.SessionID{oneID, twoID}
	held := backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Session: ids[0], Wait: true}
	if _, err := one.Acquire(b.Context(), held); err != nil {
		b.Fatal(err)
	}
	var sum time.Duration
	for i := range b.N {
		next := backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Session: ids[(i+1)%2], Wait: true}
		got := make(chan time.Time, 1)
		go func() {
			if _, err := values[(i+1)%2].Acquire(b.Context(), next); err != nil {
				b.Error(err)
			}
			got <- time.Now()
		}()
		for {
			info, err := values[i%2].Inspect(b.Context(), "n")
			if err != nil {
				b.Fatal(err)
			}
			if len(info.Waiters) == 1 {
				break
			}
		}
		from := time.Now()
		if err := values[i%2].Release(b.Context(), backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: held.Session}); err != nil {
			b.Fatal(err)
		}
		sum += (<-got).Sub(from)
		held = next
	}
	b.ReportMetric(float64(sum.Microseconds())/float64(b.N), "µs/hand-over")
}

// BenchmarkRoundTrip measures a durable statement, and one that changes nothing.
func BenchmarkRoundTrip(b *testing.B) {
	s := testserver.Postgres(b)
	s.Exec(`CREATE TABLE raw (n bigint)`, `INSERT INTO raw VALUES (1)`)
	conn, err := pgx.Connect(b.Context(), s.URL())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(b.Context()))
	for _, q := range []string{`SELECT n FROM raw`, `UPDATE raw SET n = n + 1`} {
		b.Run(q[:6], func(b *testing.B) {
			for b.Loop() {
				if _, err := conn.Exec(b.Context(), q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
