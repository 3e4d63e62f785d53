package services_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/examples/internal/web"
	"github.com/holdfast-io/holdfast/examples/redlock-services/internal/services"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// longTTL is so long that no instance renews, and so learns of a loss, while a test runs: as if it were stopped.
const longTTL = 4 * time.Minute

// fleet makes clients as instances have them, on three real Redis servers of which one is down:
// a majority is enough.
func fleet(t *testing.T, n int) []*holdfast.Client {
	t.Helper()
	nodes := testserver.RedisNodes(t, redlock.MinNodes)
	nodes[0].Kill()
	var all []*holdfast.Client
	for range n {
		c, end, err := web.Locks(t.Context(), "redlock://"+testserver.RedisAddrs(nodes)+"?quarantine=off&timeout=10s&max_ttl=5m", holdfast.Config{TTL: longTTL})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = end() })
		all = append(all, c)
	}
	return all
}

func store(t *testing.T) *services.Store {
	t.Helper()
	s, err := services.OpenStore(t.Context(), filepath.Join(t.TempDir(), "data.db"), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// meeting makes n callers wait for each other.
func meeting(n int) func() {
	var all sync.WaitGroup
	all.Add(n)
	return func() { all.Done(); all.Wait() }
}

// read returns the one value of a query.
func read(t *testing.T, db *sql.DB, query string) string {
	t.Helper()
	var all string
	if err := db.QueryRowContext(t.Context(), query).Scan(&all); err != nil {
		t.Fatal(err)
	}
	return all
}

func execute(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Error(err)
	}
}

// Without a lock two instances find that the file is not done, and both process it.
func TestFileWithoutLock(t *testing.T) {
	t.Parallel()
	db := store(t).DB()
	var processed atomic.Int32
	meet := meeting(2)
	testserver.Together(2, func(int) {
		var n int
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM results WHERE file = 'a.csv'").Scan(&n); err != nil {
			t.Error(err)
		}
		meet()
		if n == 0 {
			processed.Add(1)
			execute(t, db, "INSERT INTO results VALUES ('a.csv', 'sum') ON CONFLICT DO NOTHING")
		}
	})
	if processed.Load() != 2 {
		t.Errorf("processed %d times: the fault has to show", processed.Load())
	}
}

// With it one does: when they come together, and when one comes later.
func TestFile(t *testing.T) {
	t.Parallel()
	s := store(t)
	var processed atomic.Int32
	instances := fleet(t, 4)
	run := func(i int) {
		f := services.Files{Locks: instances[i], Store: s, Process: func(context.Context, string) (string, error) {
			processed.Add(1)
			return "sum", nil
		}}
		if _, err := f.Run(t.Context(), "a.csv"); err != nil {
			t.Error(err)
		}
	}
	testserver.Together(len(instances), run)
	for i := range instances {
		run(i)
	}
	if processed.Load() != 1 {
		t.Errorf("processed %d times", processed.Load())
	}
}

// An instance that has lost the lock on the way, and does not check, does not write: the other
// one's result stays.
func TestFileOfOneWhoLost(t *testing.T) {
	t.Parallel()
	s := store(t)
	instances := fleet(t, 3)
	second := services.Files{Locks: instances[1], Store: s, Process: func(context.Context, string) (string, error) { return "second", nil }}
	first := services.Files{Locks: instances[0], Store: s, Process: func(context.Context, string) (string, error) {
		// As if it had been stopped for longer than its lease.
		if _, err := instances[2].Break(t.Context(), "file/a.csv", "test"); err != nil {
			t.Error(err)
		}
		if done, err := second.Run(t.Context(), "a.csv"); !done || err != nil {
			t.Errorf("the second one: %t, %v", done, err)
		}
		return "first", nil
	}}
	if done, err := first.Run(t.Context(), "a.csv"); done || !errors.Is(err, fence.ErrStale) {
		t.Errorf("the first one: %t, %v", done, err)
	}
	if got := read(t, s.DB(), "SELECT group_concat(result) FROM results"); got != "second" {
		t.Errorf("results %q", got)
	}
}

// Without a lock, two that read the same counter give the same ID.
func TestIDsWithoutLock(t *testing.T) {
	t.Parallel()
	db := store(t).DB()
	meet := meeting(2)
	testserver.Together(2, func(int) {
		var last int
		if err := db.QueryRowContext(t.Context(), "SELECT coalesce(max(last), 0) FROM counters WHERE category = 'NF'").Scan(&last); err != nil {
			t.Error(err)
		}
		meet()
		execute(t, db, "INSERT INTO counters VALUES ('NF', ?) ON CONFLICT DO UPDATE SET last = excluded.last", last+1)
		execute(t, db, "INSERT INTO invoices VALUES (?, 'sale')", fmt.Sprintf("NF-%06d", last+1))
	})
	if got := read(t, db, "SELECT group_concat(id) FROM invoices"); got != "NF-000001,NF-000001" {
		t.Errorf("%q: the fault has to show", got)
	}
}

// With it, IDs are each once and without gaps, though every third invoice fails.
func TestIDs(t *testing.T) {
	t.Parallel()
	s := store(t)
	instances := fleet(t, 3)
	const each, failEvery = 9, 3
	errInvoice := errors.New("the invoice is wrong")
	testserver.Together(len(instances), func(i int) {
		g := services.IDs{Locks: instances[i], Store: s}
		for n := range each {
			_, err := g.Next(t.Context(), "NF", func(ctx context.Context, tx *sql.Tx, id string) error {
				if _, err := tx.ExecContext(ctx, "INSERT INTO invoices VALUES (?, 'sale')", id); err != nil {
					return err
				}
				if n%failEvery == 0 {
					return errInvoice
				}
				return nil
			})
			if n%failEvery == 0 != errors.Is(err, errInvoice) || err != nil && n%failEvery != 0 {
				t.Errorf("invoice %d: %v", n, err)
			}
		}
	})
	want := strconv.Itoa(len(instances) * (each - each/failEvery))
	if got := read(t, s.DB(), "SELECT count(DISTINCT id) || ' to ' || max(id) FROM invoices"); got != want+" to NF-0000"+want {
		t.Errorf("%s invoices: %s", want, got)
	}
}

// source has changes, returns them three at a time, and counts concurrent calls.
type source struct {
	total     int64
	at, most  atomic.Int32
	afterRead func()
}

func (s *source) Since(_ context.Context, seq int64) ([]services.Change, error) {
	s.most.Store(max(s.most.Load(), s.at.Add(1)))
	defer s.at.Add(-1)
	if s.afterRead != nil {
		s.afterRead()
	}
	var page []services.Change
	for n := seq + 1; n <= s.total && len(page) < 3; n++ {
		page = append(page, services.Change{Seq: n, Key: fmt.Sprintf("customer-%02d", n)})
	}
	return page, nil
}

// Without a lock, two that read the same page count its changes twice.
func TestSyncWithoutLock(t *testing.T) {
	t.Parallel()
	db := store(t).DB()
	src := &source{total: 3, afterRead: meeting(2)}
	testserver.Together(2, func(int) {
		page, err := src.Since(t.Context(), 0)
		if err != nil {
			t.Error(err)
		}
		for _, c := range page {
			execute(t, db, "INSERT INTO synced VALUES (?, 1) ON CONFLICT DO UPDATE SET changes = changes + 1", c.Key)
		}
	})
	if got := read(t, db, "SELECT group_concat(changes) FROM synced"); got != "2,2,2" {
		t.Errorf("changes %s: the fault has to show", got)
	}
}

// With it one instance synchronises at a time, and every change comes once.
func TestSync(t *testing.T) {
	t.Parallel()
	s := store(t)
	src := &source{total: 20, afterRead: func() { time.Sleep(5 * time.Millisecond) }} // others come in meanwhile, if nothing keeps them out
	instances := fleet(t, 3)
	var changes atomic.Int32
	run := func(i int) {
		job := services.Sync{Locks: instances[i], Store: s, Name: "crm", Source: src}
		n, _, err := job.Run(t.Context())
		if err != nil {
			t.Error(err)
		}
		changes.Add(int32(n))
	}
	testserver.Together(len(instances), run)
	run(0) // there are no new changes
	if changes.Load() != 20 || src.most.Load() != 1 {
		t.Errorf("%d changes, at most %d concurrent", changes.Load(), src.most.Load())
	}
	if got := read(t, s.DB(), "SELECT count(*) || ' of ' || sum(changes) FROM synced"); got != "20 of 20" {
		t.Errorf("changes %s", got)
	}
}

// TestWithLock: the operation is tried that often, with pauses that grow, and the caller is told why the lock was not acquired;
// it runs when the lock becomes free between two tries; its own error ends it.
func TestWithLock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		locks, end, err := web.Locks(t.Context(), "memory://", holdfast.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = end() }()
		held, err := locks.Acquire(t.Context(), "critical")
		if err != nil {
			t.Fatal(err)
		}
		ran, begun := 0, time.Now()
		retry := func(ctx context.Context, r services.Retry, result error) error {
			_, err := services.WithLock(ctx, locks, "critical", r, func(context.Context, *holdfast.Lock) (int, error) { ran++; return 0, result })
			return err
		}
		err = retry(t.Context(), services.Retry{Tries: 5, First: time.Second, Factor: 2}, nil)
		// About 1, 2, 4 and 8 seconds, each half as long or half as long again. Without growth it would be six at most.
		if took := time.Since(begun); !errors.Is(err, holdfast.ErrHeld) || ran != 0 || took < 7500*time.Millisecond || took > 22500*time.Millisecond {
			t.Errorf("five tries took %s, ran %d times: %v", took, ran, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := retry(ctx, services.Retry{Tries: 10, First: time.Hour}, nil); !errors.Is(err, context.DeadlineExceeded) || ran != 0 {
			t.Errorf("given up: ran %d times, %v", ran, err)
		}
		time.AfterFunc(time.Minute, func() { _ = held.Release(t.Context()) })
		if err := retry(t.Context(), services.Retry{Tries: 100, First: time.Second, Factor: 1.2}, nil); err != nil || ran != 1 {
			t.Errorf("ran %d times: %v", ran, err)
		}
		errOwn := errors.New("its own")
		if err := retry(t.Context(), services.Retry{}, errOwn); !errors.Is(err, errOwn) || ran != 2 {
			t.Errorf("called %d times: %v", ran-1, err)
		}
	})
}
