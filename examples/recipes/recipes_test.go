package recipes_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/examples/recipes"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/fence/sqlfence"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// clients are the clients of n machines, on a real Redis.
func clients(t *testing.T, n int, cfg holdfast.Config) []*holdfast.Client {
	t.Helper()
	url := "redis://" + testserver.Redis(t).Addr() + "?quarantine=off"
	all := make([]*holdfast.Client, n)
	for i := range all {
		b, err := redislock.Open(t.Context(), url, redislock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if all[i], err = holdfast.New(b, cfg); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = errors.Join(all[i].Close(context.WithoutCancel(t.Context())), b.Close()) })
	}
	return all
}

// together runs f for 0 to n-1 concurrently.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// stay is how long the work under a lock takes here: long enough for others to come in, if nothing keeps them out.
const stay = 20 * time.Millisecond

// room counts who is in it. Work that needs a lock enters it; writers must be alone.
type room struct{ readers, writers, most, mixed atomic.Int32 }

func (r *room) enter(count *atomic.Int32) {
	n := count.Add(1)
	defer count.Add(-1)
	for most := r.most.Load(); n > most && !r.most.CompareAndSwap(most, n); most = r.most.Load() {
	}
	time.Sleep(stay)
	if w := r.writers.Load(); w > 1 || w > 0 && r.readers.Load() > 0 {
		r.mixed.Add(1)
	}
}

func (r *room) write() { r.enter(&r.writers) }
func (r *room) read()  { r.enter(&r.readers) }

// steps is a schema whose steps are not atomic: two that run together go from the same version.
type steps struct {
	room    room
	version atomic.Int32
	done    atomic.Int32
}

func (s *steps) Version(context.Context) (int, error) { return int(s.version.Load()), nil }

func (s *steps) Migrate(context.Context) error {
	at := s.version.Load()
	s.room.write()
	s.version.Store(at + 1)
	s.done.Add(1)
	return nil
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	pods := clients(t, 8, holdfast.Config{})
	var s steps
	together(len(pods), func(i int) {
		if err := recipes.Migrate(t.Context(), pods[i], &s, 3); err != nil || s.version.Load() < 3 {
			t.Errorf("pod %d: version %d, %v", i, s.version.Load(), err)
		}
	})
	if s.done.Load() != 3 || s.room.most.Load() != 1 {
		t.Errorf("%d steps, %d at a time", s.done.Load(), s.room.most.Load())
	}
}

func TestOncePerPeriod(t *testing.T) {
	t.Parallel()
	machines := clients(t, 3, holdfast.Config{})
	var ran atomic.Int32
	run := func(i int, name string, period time.Duration) bool {
		here, err := recipes.OncePerPeriod(t.Context(), machines[i], name, period, func(context.Context, *holdfast.Lock) error {
			ran.Add(1)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return here
	}
	for i := range machines { // one after the other, as clocks do that differ
		run(i, "daily", time.Hour)
	}
	if ran.Load() != 1 {
		t.Errorf("it ran %d times in one period", ran.Load())
	}
	run(0, "often", 4*time.Second)
	for deadline := time.Now().Add(time.Minute); !run(1, "often", 4*time.Second); time.Sleep(stay) {
		if time.Now().After(deadline) {
			t.Fatal("it did not run in the next period")
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	machines := clients(t, 10, holdfast.Config{})
	var c cache
	var loads atomic.Int32
	load := func(context.Context) (string, error) {
		time.Sleep(stay)
		return fmt.Sprint("v", loads.Add(1)), nil
	}
	together(len(machines), func(i int) {
		if v, err := recipes.Load(t.Context(), machines[i], &c, "prices", load); v != "v1" || err != nil {
			t.Errorf("machine %d: %q, %v", i, v, err)
		}
	})
	c.mu.Lock()
	c.fresh = false
	c.mu.Unlock()
	v, err := recipes.Load(t.Context(), machines[0], &c, "prices", func(ctx context.Context) (string, error) {
		if old, err := recipes.Load(t.Context(), machines[1], &c, "prices", load); old != "v1" || err != nil {
			t.Errorf("while it is loaded: %q, %v", old, err)
		}
		return load(ctx)
	})
	if v != "v2" || err != nil || loads.Load() != 2 {
		t.Errorf("%q, %v; loaded %d times", v, err, loads.Load())
	}
}

func TestQuota(t *testing.T) {
	t.Parallel()
	machines := clients(t, 6, holdfast.Config{})
	var taken, refused atomic.Int32
	together(len(machines), func(i int) {
		q := recipes.Quota{Locks: machines[i], Name: "payments", Limit: 4, Window: time.Minute}
		switch err := q.Take(t.Context(), false); {
		case err == nil:
			taken.Add(1)
		case errors.Is(err, holdfast.ErrHeld):
			refused.Add(1)
		default:
			t.Error(err)
		}
	})
	if taken.Load() != 4 || refused.Load() != 2 {
		t.Errorf("%d taken, %d refused", taken.Load(), refused.Load())
	}
	short := recipes.Quota{Locks: machines[0], Name: "sms", Limit: 1, Window: time.Second}
	begun := time.Now()
	if err := errors.Join(short.Take(t.Context(), true), short.Take(t.Context(), true)); err != nil || time.Since(begun) < short.Window {
		t.Errorf("two in a window of one: after %s, %v", time.Since(begun), err)
	}
}

// Transfers to and fro between three accounts: none deadlocks, and no money is lost.
func TestTransfer(t *testing.T) {
	t.Parallel()
	machines := clients(t, 6, holdfast.Config{})
	names := []string{"ana", "bia", "caio"}
	var balances [3]atomic.Int64
	var inside [3]atomic.Int32 // transfers of each account that are in progress
	var overlaps atomic.Int32
	together(len(machines), func(i int) {
		from, to := i%3, (i+1+i/3)%3 // each pair in both directions
		for range 5 {
			err := recipes.Transfer(t.Context(), machines[i], names[from], names[to], func(context.Context) error {
				for _, account := range []int{from, to} {
					if inside[account].Add(1) > 1 {
						overlaps.Add(1)
					}
					defer inside[account].Add(-1)
				}
				a, b := balances[from].Load(), balances[to].Load()
				time.Sleep(stay / 4)
				balances[from].Store(a - 1)
				balances[to].Store(b + 1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	if sum := balances[0].Load() + balances[1].Load() + balances[2].Load(); sum != 0 {
		t.Errorf("the sum of the balances is off by %d", sum)
	}
	if n := overlaps.Load(); n > 0 {
		t.Errorf("%d transfers found another one at work on their account", n)
	}
}

func TestReadersAndWriters(t *testing.T) {
	t.Parallel()
	machines := clients(t, 6, holdfast.Config{})
	var r room
	together(len(machines), func(i int) {
		for range 4 {
			f, do := recipes.Read, r.read
			if i == 0 {
				f, do = recipes.Write, r.write
			}
			if err := f(t.Context(), machines[i], "catalogue", func(context.Context) error { do(); return nil }); err != nil {
				t.Error(err)
			}
		}
	})
	if r.mixed.Load() != 0 {
		t.Errorf("a writer was not alone, %d times", r.mixed.Load())
	}
	if r.most.Load() < 2 {
		t.Error("readers did not read together")
	}
}

// The work takes longer than the TTL, another machine is kept out all the time, and each step has the token. After a loss
// no further step begins, and a late write is refused.
func TestLongWork(t *testing.T) {
	t.Parallel()
	const ttl = 20 * time.Second // longer than the store takes, now and then
	machines := clients(t, 2, holdfast.Config{TTL: ttl})
	db := database(t, "sqlite", "file:"+t.TempDir()+"/data.db?_txlock=immediate")
	guard, err := sqlfence.New(sqlfence.SQLite, sqlfence.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	write := func(ctx context.Context, token fence.Token) error {
		return guard.Do(ctx, db, "import", token, func(*sql.Tx) error { return nil })
	}
	begun := time.Now()
	var late fence.Token
	err = recipes.LongWork(t.Context(), machines[0], "import", func(ctx context.Context, token fence.Token) error {
		for late = token; time.Since(begun) < ttl+ttl/2; time.Sleep(stay) {
			if _, err := machines[1].TryAcquire(t.Context(), "import"); !errors.Is(err, holdfast.ErrHeld) || ctx.Err() != nil {
				return fmt.Errorf("after %s: %w, %w", time.Since(begun), err, ctx.Err())
			}
		}
		return write(ctx, token)
	})
	if err != nil {
		t.Fatal(err)
	}
	err = recipes.LongWork(t.Context(), machines[0], "import", func(ctx context.Context, _ fence.Token) error {
		if _, err := machines[1].Break(t.Context(), "import", "test"); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}, func(context.Context, fence.Token) error {
		t.Error("a step began after the loss")
		return nil
	})
	if !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("broken: %v", err)
	}
	if err := recipes.LongWork(t.Context(), machines[1], "import", write); err != nil {
		t.Error(err)
	}
	if err := write(t.Context(), late); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a late write: %v", err)
	}
}

// Six programs change one account, and no change is lost, without any lock.
func TestUpdate(t *testing.T) {
	t.Parallel()
	db := database(t, "pgx", testserver.Postgres(t).URL())
	execute(t, db, "CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, version BIGINT NOT NULL)")
	execute(t, db, "INSERT INTO accounts VALUES (1, 0, 0)")
	const programs, each = 6, 5
	var tries atomic.Int32
	together(programs, func(int) {
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
	if got := numbers(t, db, "SELECT balance FROM accounts"); !slices.Equal(got, []int{programs * each}) || tries.Load() <= programs*each {
		t.Errorf("%d changes, the balance is %d, after %d tries", programs*each, got, tries.Load())
	}
	// One that is overtaken at its only try says so, and changes nothing.
	err := recipes.Update(t.Context(), db, 1, 1, func(a *recipes.Account) error {
		a.Balance = 0
		return recipes.Update(t.Context(), db, 1, 1, func(b *recipes.Account) error { b.Balance++; return nil })
	})
	if got := numbers(t, db, "SELECT balance FROM accounts"); !errors.Is(err, recipes.ErrChanged) || !slices.Equal(got, []int{programs*each + 1}) {
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
	if p.charges[m.Key] == 0 {
		p.charges[m.Key]++
	}
	if p.calls++; p.calls%3 == 0 {
		return errNoAnswer
	}
	return nil
}

// Every order that was committed is charged once, although answers of the provider are lost; one that was rolled back is
// not charged. No message is on its way twice at a time.
func TestOutbox(t *testing.T) {
	t.Parallel()
	db := database(t, "pgx", testserver.Postgres(t).URL())
	execute(t, db, `CREATE TABLE outbox (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key TEXT UNIQUE NOT NULL, body TEXT NOT NULL,
		sent BOOLEAN NOT NULL DEFAULT false)`)
	execute(t, db, "CREATE INDEX outbox_unsent ON outbox (id) WHERE NOT sent")
	box := recipes.Outbox{DB: db}
	const orders, senders = 20, 4
	for n := range orders {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := box.Put(t.Context(), tx, recipes.Message{Key: fmt.Sprint("order-", n), Body: "30"}); err != nil {
			t.Fatal(err)
		}
		end := tx.Commit
		if n%2 == 1 {
			end = tx.Rollback
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	p := provider{charges: make(map[string]int)}
	var onTheWay sync.Map
	together(senders, func(int) {
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
	if left := numbers(t, db, "SELECT id FROM outbox WHERE NOT sent"); len(left) != 0 || p.calls <= orders/2 {
		t.Errorf("messages %d were not sent; %d calls", left, p.calls)
	}
}
