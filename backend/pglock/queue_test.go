package pglock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/pglock"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/chaos"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// C3, B12: three hundred waiters are in the queue, on three values. Nothing is sent while they
// wait, and they are granted in order.
func TestQueueAtRest(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const n = 300
	s := testserver.Postgres(t, "shared_preload_libraries=pg_stat_statements", "autovacuum=off")
	s.Exec(`CREATE EXTENSION pg_stat_statements`, `CREATE ROLE app LOGIN`, `GRANT CREATE ON DATABASE postgres TO app`)
	var values []*pglock.Backend
	var sessions []backend.SessionID
	for range 3 {
		b := open(t, s.URLOf("app", s.Addr()))
		b.KeepFromSweeping()
		values, sessions = append(values, b), append(sessions, leasetest.Session(t, b, time.Hour, nil))
	}
	holder := leasetest.Ask("n", sessions[0])
	leasetest.Take(t, values[0], holder)
	var mu sync.Mutex
	var order []int
	var tokens []fence.Token
	var freed time.Time // when the last release was sent
	var all sync.WaitGroup
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), leasetest.Long) // for three hundred turns
	defer cancel()
	for i := range n {
		b, req := values[i%3], leasetest.Ask("n", sessions[i%3])
		got := make(chan leasetest.Answer, 1)
		go func() {
			g, err := b.Acquire(ctx, req)
			got <- leasetest.Answer{Grant: g, Err: err}
		}()
		if i%20 == 19 {
			leasetest.InQueue(t, values[0], "n", i+1)
		}
		all.Go(func() {
			g := <-got
			if g.Err != nil {
				t.Errorf("waiter %d: %v", i, g.Err)
				return
			}
			mu.Lock()
			// A timer that is due just then may be faster; after a lost push the lock is free until one is due.
			if idle := time.Since(freed); g.Grant.ByTimer && idle > 5*time.Second {
				t.Errorf("waiter %d was found by a timer %s after the release", i, idle)
			}
			order, tokens = append(order, i/20), append(tokens, g.Grant.Token)
			freed = time.Now()
			mu.Unlock()
			if err := b.Release(t.Context(), backend.ReleaseRequest{Name: req.Name, Lease: req.Lease, Session: req.Session}); err != nil {
				t.Errorf("release: %v", err)
			}
		})
	}
	calls := func() int64 {
		return s.Int(`SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE userid = 'app'::regrole`)
	}
	const rest, tries = 2 * time.Second, 15
	for try := 1; ; try++ { // what was in progress ends some time
		before := calls()
		time.Sleep(rest)
		sent := calls() - before
		if sent == 0 {
			break
		}
		if try == tries {
			t.Fatalf("%d statements were sent in %s for waiters at rest", sent, rest)
		}
	}
	from := time.Now()
	mu.Lock()
	freed = from
	mu.Unlock()
	leasetest.Give(t, values[0], holder)
	all.Wait()
	t.Logf("%d hand-overs took %s", n, time.Since(from))
	for i := 1; i < len(order); i++ {
		if order[i] < order[i-1] || tokens[i] <= tokens[i-1] {
			t.Fatalf("grant %d: group %d with token %d after group %d with token %d", i, order[i], tokens[i], order[i-1], tokens[i-1])
		}
	}
}

// C3: of a long queue only the front is read.
func TestLongQueue(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	leasetest.LongQueue(t, open(t, s.URL()), open(t, s.URL()))
}

// C8: a waiter that dies in a long queue delays the others no longer than its TTL.
func TestDeadInLongQueue(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Postgres(t)
	proxy := chaos.Start(t, s.Addr())
	b, other := open(t, s.URL()), open(t, s.URLOf("postgres", proxy.Addr()))
	b.KeepFromSweeping()
	t.Cleanup(proxy.Heal) // before they are closed
	leasetest.DeadInLongQueue(t, b, other, proxy.BlackHole)
}

// B: a value that releases locks for which only other values wait remembers none of them.
func TestQueuesOfOthersAreForgotten(t *testing.T) {
	t.Parallel()
	s := testserver.Postgres(t)
	b, other := open(t, s.URL()), open(t, s.URL())
	mine, theirs := leasetest.Session(t, b, time.Hour, nil), leasetest.Session(t, other, time.Hour, nil)
	var waits []<-chan leasetest.Answer
	for _, name := range []string{"one", "two", "three"} {
		held := leasetest.Ask(name, mine)
		leasetest.Take(t, b, held)
		for n := range 3 {
			waits = append(waits, leasetest.Start(t, other, leasetest.Ask(name, theirs)))
			leasetest.InQueue(t, other, name, n+1)
		}
		leasetest.Give(t, b, held)
	}
	if n := b.Strange(); n != 0 {
		t.Errorf("%d locks are remembered, and none has a waiter", n)
	}
	if err := other.EndSession(leasetest.Within(t), theirs); err != nil {
		t.Error(err)
	}
	for _, got := range waits {
		<-got
	}
}
