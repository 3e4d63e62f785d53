package recipes_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/examples/recipes"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
	"github.com/holdfast-io/holdfast/rowlock"
)

// stay is how long the work takes here: long enough for others to come in, if nothing keeps them out.
const stay = 20 * time.Millisecond

// TestLongWork: the work takes longer than the TTL, and another machine is kept out all the time. After a loss no further
// step begins.
func TestLongWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		machines, done := fleet(2, holdfast.Config{TTL: 10 * time.Second})
		defer done()
		var first fence.Token
		held := func(ctx context.Context, token fence.Token) error {
			time.Sleep(time.Minute)
			if _, err := machines[1].TryAcquire(ctx, "import"); !errors.Is(err, holdfast.ErrHeld) || ctx.Err() != nil {
				t.Errorf("after a minute: %v, %v", err, ctx.Err())
			}
			first = token
			return nil
		}
		lost := func(ctx context.Context, token fence.Token) error {
			if token != first || token == 0 {
				t.Errorf("the steps have the tokens %d and %d", first, token)
			}
			if _, err := machines[1].Break(t.Context(), "import", "test"); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return nil
		}
		never := func(context.Context, fence.Token) error {
			t.Error("a step began after the loss")
			return nil
		}
		if err := recipes.LongWork(t.Context(), machines[0], "import", held, lost, never); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("broken: %v", err)
		}
	})
}

// TestDatabase has the recipes that need no lease, on a real PostgreSQL.
func TestDatabase(t *testing.T) {
	t.Parallel()
	testserver.OnPostgres(t, map[string]func(*testing.T, *testserver.PostgresDatabase){"Update": testUpdate, "Outbox": testOutbox, "Queue": testQueue})
}

// Six programs change one account, and no change is lost, without any lock.
func testUpdate(t *testing.T, d *testserver.PostgresDatabase) {
	t.Helper()
	d.Exec("CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, version BIGINT NOT NULL)", "INSERT INTO accounts VALUES (1, 0, 0)")
	db := d.Pool()
	const programs, each = 6, 5
	var tries atomic.Int32
	testserver.Together(programs, func(int) {
		for range each {
			err := recipes.Update(t.Context(), db, 1, 1000, func(a *recipes.Account) error {
				tries.Add(1)
				time.Sleep(stay / 10)
				a.Balance++
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	if got := d.Int("SELECT balance FROM accounts"); got != programs*each || tries.Load() <= programs*each {
		t.Errorf("%d changes, the balance is %d, after %d tries", programs*each, got, tries.Load())
	}
	// A program that is overtaken at its only try is told so, and changes nothing.
	err := recipes.Update(t.Context(), db, 1, 1, func(a *recipes.Account) error {
		a.Balance = 0
		return recipes.Update(t.Context(), db, 1, 1, func(b *recipes.Account) error { b.Balance++; return nil })
	})
	if got := d.Int("SELECT balance FROM accounts"); !errors.Is(err, recipes.ErrChanged) || got != programs*each+1 {
		t.Errorf("overtaken: %v; the balance is %d", err, got)
	}
}

// provider is a payment provider that knows its idempotency keys. Every third answer of it is lost.
type provider struct {
	mu      sync.Mutex
	charges map[string]int // by key
	calls   int
}

var errNoAnswer = errors.New("the answer was lost")

func (p *provider) charge(_ context.Context, m recipes.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.charges[m.Key] = 1
	if p.calls++; p.calls%3 == 0 {
		return errNoAnswer
	}
	return nil
}

// Every order that was committed is charged once, although answers of the provider are lost; one that was rolled back is
// not charged. No message is on its way twice at a time.
func testOutbox(t *testing.T, d *testserver.PostgresDatabase) {
	t.Helper()
	d.Exec(`CREATE TABLE outbox (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key TEXT UNIQUE NOT NULL, body TEXT NOT NULL,
		sent BOOLEAN NOT NULL DEFAULT false)`, "CREATE INDEX outbox_unsent ON outbox (id) WHERE NOT sent")
	db := d.Pool()
	box := recipes.Outbox{DB: db}
	const orders, senders = 20, 4
	for n := range orders {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		end := tx.Commit
		if n%2 == 1 {
			end = tx.Rollback
		}
		if err := errors.Join(box.Put(t.Context(), tx, recipes.Message{Key: fmt.Sprint("order-", n), Body: "30"}), end()); err != nil {
			t.Fatal(err)
		}
	}
	p := provider{charges: make(map[string]int)}
	var onTheWay sync.Map
	testserver.Together(senders, func(int) {
		for {
			more, err := box.Send(t.Context(), func(ctx context.Context, m recipes.Message) error {
				if _, twice := onTheWay.LoadOrStore(m.Key, true); twice {
					t.Errorf("%s is on its way twice", m.Key)
				}
				defer onTheWay.Delete(m.Key)
				time.Sleep(stay / 4)
				return p.charge(ctx, m)
			})
			if err != nil && !errors.Is(err, errNoAnswer) {
				t.Error(err)
			}
			if !more {
				return
			}
		}
	})
	for n := range orders {
		if got, want := p.charges[fmt.Sprint("order-", n)], 1-n%2; got != want {
			t.Errorf("order %d was charged %d times, not %d", n, got, want)
		}
	}
	if left := d.Int("SELECT count(*) FROM outbox WHERE NOT sent"); left != 0 || p.calls <= orders/2 {
		t.Errorf("%d messages were not sent; %d calls", left, p.calls)
	}
}

// Six workers, of which one fails now and then, do forty jobs, each once.
func testQueue(t *testing.T, d *testserver.PostgresDatabase) {
	t.Helper()
	const jobs, workers = 40, 6
	d.Exec("CREATE TABLE jobs (id INT PRIMARY KEY, state VARCHAR(10) NOT NULL)", "CREATE INDEX jobs_ready ON jobs (state, id)",
		"CREATE TABLE done (job INT NOT NULL)", fmt.Sprintf("INSERT INTO jobs SELECT n, 'ready' FROM generate_series(1, %d) n", jobs))
	q := recipes.Queue{DB: d.Pool(), Dialect: rowlock.Postgres}
	errFails := errors.New("this one fails")
	testserver.Together(workers, func(w int) {
		for round := 0; ; round++ {
			n, err := q.Work(t.Context(), 3, func(ctx context.Context, tx *sql.Tx, job int) error {
				if w == 0 && round < 3 {
					return errFails
				}
				_, err := tx.ExecContext(ctx, "INSERT INTO done VALUES ($1)", job)
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
	if done, each := d.Int("SELECT count(*) FROM done"), d.Int("SELECT count(DISTINCT job) FROM done"); done != jobs || each != jobs {
		t.Errorf("%d of %d jobs were done, %d times", each, jobs, done)
	}
}
