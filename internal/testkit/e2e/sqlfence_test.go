package e2e_test

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/fence/sqlfence"
)

// fenceEngine is a database on which the same tests run.
type fenceEngine struct {
	dialect sqlfence.Dialect
	open    func(*testing.T) *sql.DB
	param   func(n int) string
}

func fenceEngines() map[string]fenceEngine {
	mark := func(int) string { return "?" }
	return map[string]fenceEngine{
		"sqlite":   {sqlfence.SQLite, openSQLite, mark},
		"postgres": {sqlfence.Postgres, openPostgres, func(n int) string { return "$" + strconv.Itoa(n) }},
		"mariadb":  {sqlfence.MySQL, openMariaDB, mark},
	}
}

func openPostgres(t *testing.T) *sql.DB {
	t.Helper()
	return openDB(t, "pgx", postgresDatabase(t))
}

// openMariaDB counts the rows that a statement matched, as Exec needs it.
func openMariaDB(t *testing.T) *sql.DB {
	t.Helper()
	return openDB(t, "mysql", mariaDatabase()+"?clientFoundRows=true")
}

func openDB(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func openSQLite(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+t.TempDir()+"/data.db?_pragma=busy_timeout(30000)&_pragma=journal_mode(wal)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// fenceFixture is what each test gets.
type fenceFixture struct {
	t      *testing.T
	engine fenceEngine
	db     *sql.DB
	guard  *sqlfence.Guard
}

// onEachEngine runs the test on each engine, after creating the guard's table and a table of stock.
func onEachEngine(t *testing.T, f func(fenceFixture)) {
	t.Helper()
	for name, e := range fenceEngines() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := e.open(t)
			t.Cleanup(func() { _ = db.Close() })
			g, err := sqlfence.New(e.dialect, sqlfence.Config{})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // a second time changes nothing
				if err := g.Migrate(t.Context(), db); err != nil {
					t.Fatal(err)
				}
			}
			execSQL(t, db, "CREATE TABLE stock (id INT PRIMARY KEY, n INT NOT NULL, token BIGINT NOT NULL DEFAULT 0)")
			execSQL(t, db, "INSERT INTO stock (id, n) VALUES (7, 10)")
			f(fenceFixture{t, e, db, g})
		})
	}
}

func execSQL(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}

func stock(t *testing.T, db *sql.DB) int {
	t.Helper()
	var n int
	if err := db.QueryRowContext(t.Context(), "SELECT n FROM stock WHERE id = 7").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// set writes what the holder has decided.
func set(ctx context.Context, n int) func(*sql.Tx) error {
	return func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, map[int]string{9: "UPDATE stock SET n = 9 WHERE id = 7", 7: "UPDATE stock SET n = 7 WHERE id = 7"}[n])
		if err != nil {
			return err
		}
		_, err = res.RowsAffected()
		return err
	}
}

// TestLateWriter: the holder with the smaller token writes after the other; nothing of its
// transaction remains.
func TestLateWriter(t *testing.T) {
	t.Parallel()
	onEachEngine(t, func(x fenceFixture) {
		t, db, g := x.t, x.db, x.guard
		ctx := t.Context()
		if err := g.Do(ctx, db, "stock:7", 34, set(ctx, 7)); err != nil {
			t.Fatal(err)
		}
		err := g.Do(ctx, db, "stock:7", 33, set(ctx, 9))
		var stale *fence.StaleError
		if !errors.As(err, &stale) || stale.Newest != 34 || stale.Token != 33 || stale.Resource != "stock:7" {
			t.Errorf("the late write: %v", err)
		}
		if n := stock(t, db); n != 7 {
			t.Errorf("the stock is %d after the late write was refused, and has to be 7", n)
		}
		if err := g.Do(ctx, db, "stock:7", 34, set(ctx, 9)); err != nil || stock(t, db) != 9 {
			t.Errorf("the holder writes again: %v, stock %d", err, stock(t, db))
		}
		if err := g.Do(ctx, db, "STOCK:7", 1, set(ctx, 7)); err != nil {
			t.Errorf("another resource: %v", err)
		}
		if err := g.Do(ctx, db, "stock:7", fence.MaxToken, set(ctx, 9)); err != nil {
			t.Errorf("the greatest token: %v", err)
		}
	})
}

// TestNothingIsRemembered of a transaction that is rolled back.
func TestNothingIsRemembered(t *testing.T) {
	t.Parallel()
	onEachEngine(t, func(x fenceFixture) {
		t, db, g := x.t, x.db, x.guard
		ctx, errOwn := t.Context(), errors.New("its own")
		err := g.Do(ctx, db, "stock:7", 50, func(tx *sql.Tx) error { return errors.Join(set(ctx, 9)(tx), errOwn) })
		if !errors.Is(err, errOwn) || stock(t, db) != 10 {
			t.Errorf("a write that failed: %v, stock %d", err, stock(t, db))
		}
		if err := g.Do(ctx, db, "stock:7", 49, set(ctx, 7)); err != nil {
			t.Errorf("a token below that of what was rolled back: %v", err)
		}
	})
}

// TestTheRowWaits: between the check and the commit of one transaction, another check of the
// resource waits, and then sees the first.
func TestTheRowWaits(t *testing.T) {
	t.Parallel()
	onEachEngine(t, func(x fenceFixture) {
		t, db, g := x.t, x.db, x.guard
		ctx := t.Context()
		checked, goOn := make(chan struct{}), make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			err := g.Do(ctx, db, "stock:7", 9, func(tx *sql.Tx) error {
				close(checked)
				<-goOn
				return set(ctx, 7)(tx)
			})
			if err != nil {
				t.Error(err)
			}
		})
		<-checked
		late := make(chan error, 1)
		wg.Go(func() { late <- g.Do(ctx, db, "stock:7", 8, set(ctx, 9)) })
		select {
		case err := <-late:
			t.Errorf("the other did not wait: %v", err)
		case <-time.After(200 * time.Millisecond):
		}
		close(goOn)
		if err := <-late; !errors.Is(err, fence.ErrStale) {
			t.Errorf("the other, after it waited: %v", err)
		}
		wg.Wait()
		if n := stock(t, db); n != 7 {
			t.Errorf("stock %d", n)
		}
	})
}

// TestManyAtOnce: in whatever order writes come, the value at the end belongs to the greatest
// token.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	onEachEngine(t, func(x fenceFixture) {
		t, e, db, g := x.t, x.engine, x.db, x.guard
		const writers = 40
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				token := fence.Token((i*17)%writers + 1)
				err := g.Do(t.Context(), db, "stock:7", token, func(tx *sql.Tx) error {
					_, err := tx.ExecContext(t.Context(), "UPDATE stock SET n = "+e.param(1)+" WHERE id = 7", int64(token))
					return err
				})
				if err != nil && !errors.Is(err, fence.ErrStale) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := stock(t, db); n != writers {
			t.Errorf("the last write is of token %d, and has to be of %d", n, writers)
		}
	})
}

func TestEpochs(t *testing.T) {
	t.Parallel()
	onEachEngine(t, func(x fenceFixture) {
		t, e, db, old := x.t, x.engine, x.db, x.guard
		ctx := t.Context()
		now, err := sqlfence.New(e.dialect, sqlfence.Config{Epoch: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := old.Do(ctx, db, "stock:7", 1000, set(ctx, 7)); err != nil {
			t.Fatal(err)
		}
		if err := now.Do(ctx, db, "stock:7", 2, set(ctx, 9)); err != nil {
			t.Errorf("the first token of the new store: %v", err)
		}
		err = old.Do(ctx, db, "stock:7", 2000, set(ctx, 7))
		var epoch *fence.EpochError
		if !errors.As(err, &epoch) || errors.Is(err, fence.ErrStale) || epoch.Want != (fence.Stamp{Epoch: 1, Token: 2}) {
			t.Errorf("a token of the old store: %v", err)
		}
		for _, s := range []fence.Stamp{{Token: 5}, {Epoch: 2, Token: 5}} { // a presented epoch is never trusted
			if err := now.DoStamp(ctx, db, "stock:7", s, set(ctx, 7)); !errors.Is(err, fence.ErrEpoch) {
				t.Errorf("the stamp %v at a guard of epoch 1: %v", s, err)
			}
		}
		if err := now.DoStamp(ctx, db, "stock:7", fence.Stamp{Epoch: 1, Token: 2}, set(ctx, 9)); err != nil {
			t.Errorf("the holder, with its epoch: %v", err)
		}
		const redis, etcd = 1_790_000_000_000_000, 4711
		if err := old.Do(ctx, db, "moved", redis, set(ctx, 9)); err != nil {
			t.Fatal(err)
		}
		if err := old.Do(ctx, db, "moved", etcd, set(ctx, 7)); !errors.Is(err, fence.ErrEpoch) {
			t.Errorf("locks that moved without an epoch: %v", err)
		}
		if err := now.Do(ctx, db, "stock:7", 1, set(ctx, 7)); !errors.Is(err, fence.ErrStale) {
			t.Errorf("a token that went back: %v", err)
		}
		if n := stock(t, db); n != 9 {
			t.Errorf("stock %d", n)
		}
	})
}

// TestExec checks the form with a single statement.
func TestExec(t *testing.T) {
	t.Parallel()
	onEachEngine(t, func(x fenceFixture) {
		t, e, db := x.t, x.engine, x.db
		query := "UPDATE stock SET n = " + e.param(1) + ", token = " + e.param(2) + " WHERE id = 7 AND token <= " + e.param(3)
		write := func(token fence.Token, n int) error {
			_, err := sqlfence.Exec(t.Context(), db, "stock:7", token, query, n, int64(token), int64(token))
			return err
		}
		if err := write(5, 7); err != nil {
			t.Fatal(err)
		}
		if err := write(4, 9); !errors.Is(err, fence.ErrStale) || stock(t, db) != 7 {
			t.Errorf("the late write: %v, stock %d", err, stock(t, db))
		}
		if err := write(5, 7); err != nil {
			t.Errorf("the holder writes the same again: %v", err)
		}
		if _, err := sqlfence.Exec(t.Context(), db, "stock:7", 6, "UPDATE stock SET n = 0"); err == nil || stock(t, db) != 7 {
			t.Error("a statement that compares nothing was executed")
		}
	})
}

func TestRefusedWrite(t *testing.T) {
	t.Parallel()
	onEachEngine(t, func(x fenceFixture) {
		t, db, g := x.t, x.db, x.guard
		var bad *fence.InvalidError
		if err := g.Do(t.Context(), db, "stock:7", 0, set(t.Context(), 9)); !errors.As(err, &bad) || stock(t, db) != 10 {
			t.Errorf("token 0: %v", err)
		}
		other, err := sqlfence.New(sqlfence.SQLite, sqlfence.Config{Table: "not_there"})
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Do(t.Context(), db, "stock:7", 1, set(t.Context(), 9)); err == nil || errors.Is(err, fence.ErrStale) || stock(t, db) != 10 {
			t.Errorf("without a table: %v", err)
		}
	})
}
