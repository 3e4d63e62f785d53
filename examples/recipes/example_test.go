package recipes_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/examples/recipes"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// fleet makes clients of one store, as machines have them; on a real one each would call
// open.URL(ctx, "redis://...").
func fleet(n int, cfg holdfast.Config) ([]*holdfast.Client, func()) {
	store := memlock.NewStore()
	clients := make([]*holdfast.Client, n)
	backends := make([]*memlock.Backend, n)
	for i := range clients {
		backends[i] = store.Open()
		clients[i], _ = holdfast.New(backends[i], cfg)
	}
	return clients, func() {
		for i, c := range clients {
			_ = errors.Join(c.Close(context.Background()), backends[i].Close())
		}
	}
}

// A job runs once in the fleet, although the clocks of the machines differ and the job had
// finished long before the last of them called.
func ExampleOncePerPeriod() {
	machines, done := fleet(3, holdfast.Config{})
	defer done()
	for i, locks := range machines { // one after the other, as clocks do that differ
		ran, err := recipes.OncePerPeriod(context.Background(), locks, "report", time.Hour,
			func(context.Context, *holdfast.Lock) error { fmt.Println("the report is written"); return nil })
		fmt.Println("machine", i, ran, err)
	}
	// Output:
	// the report is written
	// machine 0 true <nil>
	// machine 1 false <nil>
	// machine 2 false <nil>
}

// schema is a database whose steps are not atomic: two that run together begin at the same version.
type schema struct{ version, steps atomic.Int32 }

func (s *schema) Version(context.Context) (int, error) { return int(s.version.Load()), nil }

func (s *schema) Migrate(context.Context) error {
	at := s.version.Load()
	time.Sleep(stay)
	s.version.Store(at + 1)
	s.steps.Add(1)
	return nil
}

// Eight pods start at the same time; the schema goes from 0 to 3 in three steps.
func ExampleMigrate() {
	pods, done := fleet(8, holdfast.Config{})
	defer done()
	var s schema
	testserver.Together(len(pods), func(i int) {
		if err := recipes.Migrate(context.Background(), pods[i], &s, 3); err != nil {
			fmt.Println(err)
		}
	})
	fmt.Println("version", s.version.Load(), "in", s.steps.Load(), "steps")
	// Output: version 3 in 3 steps
}

// cache keeps one value.
type cache struct {
	mu    sync.Mutex
	value string
	fresh bool
}

func (c *cache) Get(context.Context, string) (string, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.fresh, nil
}

func (c *cache) Put(_ context.Context, _, value string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value, c.fresh = value, true
	return nil
}

// Twenty callers want a value that is not in the cache: it is loaded once. Later it is stale:
// while one caller loads it, the others get the old value immediately.
func ExampleLoad() {
	machines, done := fleet(20, holdfast.Config{})
	defer done()
	ctx := context.Background()
	var c cache
	loads := make(chan int, len(machines))
	values := make(chan string, len(machines))
	testserver.Together(len(machines), func(i int) {
		v, err := recipes.Load(ctx, machines[i], &c, "prices", func(context.Context) (string, error) {
			loads <- i
			time.Sleep(stay)
			return "v1", nil
		})
		if err != nil {
			fmt.Println(err)
		}
		values <- v
	})
	close(values)
	same := 0
	for v := range values {
		if v == "v1" {
			same++
		}
	}
	fmt.Println(len(loads), "load,", same, "values")

	c.fresh = false
	v, err := recipes.Load(ctx, machines[0], &c, "prices", func(context.Context) (string, error) {
		v, err := recipes.Load(context.Background(), machines[1], &c, "prices", nil) // meanwhile, elsewhere
		fmt.Println("the others get", v, err)
		return "v2", nil
	})
	fmt.Println("the loader gets", v, err)
	// Output:
	// 1 load, 20 values
	// the others get v1 <nil>
	// the loader gets v2 <nil>
}

// Three calls in a minute, whichever machines make them; and a window that has ended lets the
// next one through.
func ExampleQuota() {
	machines, done := fleet(4, holdfast.Config{})
	defer done()
	ctx := context.Background()
	for i, locks := range machines {
		q := recipes.Quota{Locks: locks, Name: "payment-api", Limit: 3, Window: time.Minute}
		err := q.Take(ctx, false)
		fmt.Println("call", i, err == nil, errors.Is(err, holdfast.ErrHeld))
	}
	short := recipes.Quota{Locks: machines[0], Name: "sms", Limit: 1, Window: 500 * time.Millisecond}
	fmt.Println(short.Take(ctx, true), short.Take(ctx, true)) // the second one waits for the end of the first
	// Output:
	// call 0 true false
	// call 1 true false
	// call 2 true false
	// call 3 false true
	// <nil> <nil>
}

// Concurrent transfers to and fro between three accounts: none waits for ever, and no money is
// lost.
func ExampleTransfer() {
	machines, done := fleet(6, holdfast.Config{})
	defer done()
	names := []string{"ana", "bia", "caio"}
	balances := make([]atomic.Int64, len(names))
	testserver.Together(len(machines), func(i int) {
		from, to := i%3, (i+1+i/3)%3 // each pair in both directions
		for range 5 {
			if err := recipes.Transfer(context.Background(), machines[i], names[from], names[to], func(context.Context) error {
				a, b := balances[from].Load(), balances[to].Load()
				time.Sleep(stay / 4)
				balances[from].Store(a - 10)
				balances[to].Store(b + 10)
				return nil
			}); err != nil {
				fmt.Println(err)
			}
		}
	})
	fmt.Println(balances[0].Load() + balances[1].Load() + balances[2].Load())
	// Output: 0
}

// Two read at the same time, each on its own machine; a writer waits during that, here until it gives up.
func ExampleRead() {
	machines, done := fleet(3, holdfast.Config{})
	defer done()
	ctx := context.Background()
	fmt.Println(recipes.Read(ctx, machines[0], "catalogue", func(context.Context) error {
		return recipes.Read(ctx, machines[1], "catalogue", func(context.Context) error {
			short, cancel := context.WithTimeout(ctx, stay)
			defer cancel()
			err := recipes.Write(short, machines[2], "catalogue", func(context.Context) error { return nil })
			fmt.Println("two read; a writer waits:", errors.Is(err, context.DeadlineExceeded))
			return nil
		})
	}))
	fmt.Println(recipes.Write(ctx, machines[2], "catalogue", func(context.Context) error {
		fmt.Println("one writes")
		return nil
	}))
	// Output:
	// two read; a writer waits: true
	// <nil>
	// one writes
	// <nil>
}
