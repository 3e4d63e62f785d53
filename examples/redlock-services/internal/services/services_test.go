package services_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
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
	nodes := someNodes(t)
	var all []*holdfast.Client
	for range n {
		all = append(all, client(t, nodes, holdfast.Config{TTL: longTTL}))
	}
	return all
}

func someNodes(t *testing.T) []*testserver.RedisServer {
	t.Helper()
	nodes := testserver.RedisNodes(t, redlock.MinNodes)
	nodes[0].Kill()
	return nodes
}

func client(t *testing.T, nodes []*testserver.RedisServer, cfg holdfast.Config) *holdfast.Client {
	t.Helper()
	return delayed(t, nodes, cfg, nil)
}

// delayed is client for an instance that is stopped when it is granted a lock, until granted has returned.
func delayed(t *testing.T, nodes []*testserver.RedisServer, cfg holdfast.Config, granted func()) *holdfast.Client {
	t.Helper()
	b, err := redlock.Open(t.Context(), "redlock://"+testserver.RedisAddrs(nodes)+"?quarantine=off&timeout=10s&max_ttl=5m", redlock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := holdfast.New(&stopped{b, granted}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(c.Close(context.WithoutCancel(t.Context())), b.Close()) })
	return c
}

// stopped is a backend whose answers to Acquire arrive when granted has returned.
type stopped struct {
	backend.Backend

	granted func()
}

func (b *stopped) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.Grant, error) {
	g, err := b.Backend.Acquire(ctx, req)
	if err == nil && b.granted != nil {
		b.granted()
	}
	return g, err
}

func store(t *testing.T) *services.Store {
	t.Helper()
	return storeAt(t, filepath.Join(t.TempDir(), "data.db"), 0)
}

func storeAt(t *testing.T, path string, epoch uint32) *services.Store {
	t.Helper()
	s, err := services.OpenStore(t.Context(), path, epoch)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// together runs f n times concurrently.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// meeting makes n callers wait for each other.
func meeting(n int) func() {
	var all sync.WaitGroup
	all.Add(n)
	return func() { all.Done(); all.Wait() }
}

func read[T any](t *testing.T, db *sql.DB, query string) []T {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		var v T
		if err := rows.Scan(&v); err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	if err := rows.Err(); err != nil {
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
	together(2, func(int) {
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
	var processed, here atomic.Int32
	instances := fleet(t, 4)
	run := func(i int) {
		f := services.Files{Locks: instances[i], Store: s, Process: func(context.Context, string) (string, error) {
			processed.Add(1)
			return "sum", nil
		}}
		done, err := f.Run(t.Context(), "a.csv")
		if err != nil {
			t.Error(err)
		}
		if done {
			here.Add(1)
		}
	}
	together(len(instances), run)
	for i := range instances {
		run(i)
	}
	if processed.Load() != 1 || here.Load() != 1 {
		t.Errorf("processed %d times, and told of %d", processed.Load(), here.Load())
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
	if got := read[string](t, s.DB(), "SELECT result FROM results"); !slices.Equal(got, []string{"second"}) {
		t.Errorf("results %q", got)
	}
}

// Without a lock, two that read the same counter give the same ID.
func TestIDsWithoutLock(t *testing.T) {
	t.Parallel()
	db := store(t).DB()
	meet := meeting(2)
	together(2, func(int) {
		var last int
		if err := db.QueryRowContext(t.Context(), "SELECT coalesce(max(last), 0) FROM counters WHERE category = 'NF'").Scan(&last); err != nil {
			t.Error(err)
		}
		meet()
		execute(t, db, "INSERT INTO counters VALUES ('NF', ?) ON CONFLICT DO UPDATE SET last = excluded.last", last+1)
		execute(t, db, "INSERT INTO invoices VALUES (?, 'sale')", fmt.Sprintf("NF-%06d", last+1))
	})
	if got := read[string](t, db, "SELECT id FROM invoices"); len(got) != 2 || got[0] != got[1] {
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
	together(len(instances), func(i int) {
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
	got := read[string](t, s.DB(), "SELECT id FROM invoices ORDER BY id")
	if want := len(instances) * (each - each/failEvery); len(got) != want {
		t.Fatalf("%d invoices, want %d", len(got), want)
	}
	for i, id := range got {
		if want := fmt.Sprintf("NF-%06d", i+1); id != want {
			t.Errorf("invoice %d is %s", i, id)
		}
	}
}

// invoice writes the record of an ID.
func invoice(ctx context.Context, tx *sql.Tx, id string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO invoices VALUES (?, 'sale')", id)
	return err
}

// An instance that has lost the lock before it counts, and does not know, writes nothing.
func TestIDsOfOneWhoLost(t *testing.T) {
	t.Parallel()
	s, nodes := store(t), someNodes(t)
	second, operator := client(t, nodes, holdfast.Config{TTL: longTTL}), client(t, nodes, holdfast.Config{})
	first := delayed(t, nodes, holdfast.Config{TTL: longTTL}, func() {
		if _, err := operator.Break(t.Context(), "ids/NF", "test"); err != nil {
			t.Error(err)
		}
		if id, err := (&services.IDs{Locks: second, Store: s}).Next(t.Context(), "NF", invoice); id != "NF-000001" || err != nil {
			t.Errorf("the second one: %q, %v", id, err)
		}
	})
	if id, err := (&services.IDs{Locks: first, Store: s}).Next(t.Context(), "NF", invoice); id != "" || !errors.Is(err, fence.ErrStale) {
		t.Errorf("the first one: %q, %v", id, err)
	}
	if got := read[string](t, s.DB(), "SELECT id FROM invoices"); !slices.Equal(got, []string{"NF-000001"}) {
		t.Errorf("invoices %q", got)
	}
}

// When the locks have moved to other servers, where tokens are smaller, writes under them need the next epoch, and those
// under locks of the old servers are refused.
func TestEpoch(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "data.db")
	next := func(locks *holdfast.Client, epoch uint32) error {
		t.Helper()
		_, err := (&services.IDs{Locks: locks, Store: storeAt(t, path, epoch)}).Next(t.Context(), "NF", invoice)
		return err
	}
	before := fleet(t, 1)[0]
	if err := next(before, 0); err != nil {
		t.Fatal(err)
	}
	if err := next(fleet(t, 1)[0], 1); err != nil {
		t.Errorf("after the move: %v", err)
	}
	if err := next(before, 0); !errors.Is(err, fence.ErrEpoch) {
		t.Errorf("under a lock of the old servers: %v", err)
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
	together(2, func(int) {
		page, err := src.Since(t.Context(), 0)
		if err != nil {
			t.Error(err)
		}
		for _, c := range page {
			execute(t, db, "INSERT INTO synced VALUES (?, 1) ON CONFLICT DO UPDATE SET changes = changes + 1", c.Key)
		}
	})
	if got := read[int](t, db, "SELECT changes FROM synced"); !slices.Equal(got, []int{2, 2, 2}) {
		t.Errorf("changes %v: the fault has to show", got)
	}
}

// With it one instance synchronises at a time, every change comes once, and the others are told
// that another instance is doing it.
func TestSync(t *testing.T) {
	t.Parallel()
	s := store(t)
	src := &source{total: 20, afterRead: func() { time.Sleep(5 * time.Millisecond) }} // others come in meanwhile, if nothing keeps them out
	instances := fleet(t, 3)
	var changes, ran atomic.Int32
	run := func(i int) {
		job := services.Sync{Locks: instances[i], Store: s, Name: "crm", Source: src}
		n, here, err := job.Run(t.Context())
		if err != nil {
			t.Error(err)
		}
		changes.Add(int32(n))
		if here {
			ran.Add(1)
		}
	}
	together(len(instances), run)
	run(0) // there are no new changes
	if changes.Load() != 20 || src.most.Load() != 1 || ran.Load() < 2 {
		t.Errorf("%d changes in %d runs, at most %d concurrent", changes.Load(), ran.Load(), src.most.Load())
	}
	if got := read[int](t, s.DB(), "SELECT changes FROM synced"); len(got) != 20 || slices.Max(got) != 1 {
		t.Errorf("changes %v", got)
	}
}

// An instance that has lost the lock while it read its source, and does not know, brings in nothing.
func TestSyncOfOneWhoLost(t *testing.T) {
	t.Parallel()
	s, instances := store(t), fleet(t, 3)
	first := services.Sync{Locks: instances[0], Store: s, Name: "crm", Source: &source{total: 5, afterRead: func() {
		if _, err := instances[2].Break(t.Context(), "sync/crm", "test"); err != nil {
			t.Error(err)
		}
		second := services.Sync{Locks: instances[1], Store: s, Name: "crm", Source: &source{total: 5}}
		if n, here, err := second.Run(t.Context()); n != 5 || !here || err != nil {
			t.Errorf("the second one: %d, %t, %v", n, here, err)
		}
	}}}
	if n, _, err := first.Run(t.Context()); n != 0 || !errors.Is(err, fence.ErrStale) {
		t.Errorf("the first one: %d, %v", n, err)
	}
	if got := read[int](t, s.DB(), "SELECT changes FROM synced"); len(got) != 5 || slices.Max(got) != 1 {
		t.Errorf("changes %v", got)
	}
}

// The operation is tried that often, and the caller is told why the lock was not acquired; it
// runs when the lock becomes free between two tries; its own error ends it.
func TestWithLock(t *testing.T) {
	t.Parallel()
	nodes := someNodes(t)
	instances := []*holdfast.Client{client(t, nodes, holdfast.Config{TTL: longTTL}), client(t, nodes, holdfast.Config{TTL: longTTL})}
	held, err := instances[0].Acquire(t.Context(), "critical")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	operation := func(_ context.Context, lock *holdfast.Lock) (fence.Token, error) { ran++; return lock.Token(), nil }
	if _, err := services.WithLock(t.Context(), instances[1], "critical", services.Retry{First: time.Millisecond}, operation); !errors.Is(err, holdfast.ErrHeld) || ran != 0 {
		t.Errorf("while it is held: ran %d times, %v", ran, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := services.WithLock(ctx, instances[1], "critical", services.Retry{Tries: 10, First: time.Hour}, operation); !errors.Is(err, context.Canceled) || ran != 0 {
		t.Errorf("given up: ran %d times, %v", ran, err)
	}
	// It is released when the second try has failed: one try is not enough.
	var failed atomic.Int32
	retrying := client(t, nodes, holdfast.Config{TTL: longTTL, Hooks: &holdfast.Hooks{Failed: func(context.Context, holdfast.FailedEvent) {
		if failed.Add(1) == 2 {
			if err := held.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}}})
	token, err := services.WithLock(t.Context(), retrying, "critical", services.Retry{Tries: 100, First: 10 * time.Millisecond, Factor: 1.2}, operation)
	if err != nil || ran != 1 || token <= held.Token() || failed.Load() < 2 {
		t.Errorf("ran %d times with token %d after %d, %d tries failed: %v", ran, token, held.Token(), failed.Load(), err)
	}
	errOwn := errors.New("its own")
	calls := 0
	if _, err := services.WithLock(t.Context(), instances[0], "critical", services.Retry{}, func(context.Context, *holdfast.Lock) (int, error) { calls++; return 0, errOwn }); !errors.Is(err, errOwn) || calls != 1 {
		t.Errorf("called %d times: %v", calls, err)
	}
}

// The pauses between the tries grow.
func TestWithLockPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := memlock.New()
		defer b.Close()
		locks, err := holdfast.New(b, holdfast.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close(t.Context())
		if _, err := locks.Acquire(t.Context(), "critical"); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		_, err = services.WithLock(t.Context(), locks, "critical", services.Retry{Tries: 5, First: time.Second, Factor: 2},
			func(context.Context, *holdfast.Lock) (int, error) { return 0, nil })
		// About 1, 2, 4 and 8 seconds, each half as long or half as long again. Without growth it would be six at most.
		if took := time.Since(begun); !errors.Is(err, holdfast.ErrHeld) || took < 7500*time.Millisecond || took > 22500*time.Millisecond {
			t.Errorf("five tries took %s: %v", took, err)
		}
	})
}
