package sqllease_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/simulate"
)

// alone returns values on new tables, of which nothing runs by itself.
func alone(t *testing.T, hears bool, n int) (*tables, []value) {
	t.Helper()
	d := newTables()
	var all []value
	for range n {
		b := d.open(nil, hears)
		b.KeepStill()
		t.Cleanup(b.Leases.Close)
		all = append(all, b)
	}
	return d, all
}

// bubbles runs a test in a bubble for each of the cases.
func bubbles[C any](t *testing.T, cases map[string]C, test func(*testing.T, C)) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { test(t, c) })
		})
	}
}

// C8: a commit whose answer is lost may have granted the lock to a waiter of the same value, which is not notified. It is
// read, and not only when the first session can end; also where the commit arrives later.
func TestGrantOfALostCommit(t *testing.T) {
	t.Parallel()
	bubbles(t, map[string]simulate.Fate{
		"was done":       {Err: simulate.ErrCut, Done: true},
		"arrives later":  {Err: simulate.ErrCut, Late: true, Delay: time.Millisecond},
		"did not arrive": {Err: simulate.ErrCut},
	}, func(t *testing.T, f simulate.Fate) {
		t.Helper()
		_, all := alone(t, true, 1)
		b := all[0]
		b.NeverQuick()
		id := leasetest.Session(t, b, time.Hour, nil)
		held, next := leasetest.Ask("n", id), leasetest.Ask("n", id)
		leasetest.Take(t, b, held)
		got := leasetest.Start(t, b, next)
		synctest.Wait()
		b.via.commits <- f
		from := time.Now()
		if err := b.Release(t.Context(), backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: id}); err == nil {
			t.Fatal("the answer was not lost")
		}
		if !f.Done && !f.Late {
			leasetest.Give(t, b, held)
		}
		if g := <-got; g.Err != nil {
			t.Errorf("the waiter: %v", g.Err)
		}
		if took := time.Since(from); took > 3*time.Second {
			t.Errorf("the waiter was told after %s", took)
		}
	})
}

// C8: no notification arrives when a waiter is granted its lock, and they arrive again before its value has the answer that it
// is in the queue. The grant is not left to a timer.
func TestGrantBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, all := alone(t, true, 2)
		holder, b := all[0], all[1]
		b.NeverQuick()
		id := leasetest.Session(t, b, time.Hour, nil)
		held := leasetest.Ask("n", leasetest.Session(t, holder, time.Hour, nil))
		leasetest.Take(t, holder, held)
		d.deaf(b, true)
		b.via.commits <- simulate.Fate{Delay: 2 * time.Second} // committed after one, answered after both
		got := leasetest.Start(t, b, leasetest.Ask("n", id))
		time.Sleep(3 * time.Second)
		leasetest.Give(t, holder, held)
		d.deaf(b, false)
		if g := <-got; g.Err != nil {
			t.Fatal(g.Err)
		} else if took := time.Since(g.Grant.Since); took > 2*time.Second {
			t.Errorf("the grant was seen after %s", took)
		}
	})
}

// F8: another client keeps the row of a lock. Requests for other locks continue, and that for this one when the row is free.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, all := alone(t, true, 1)
		id := leasetest.Session(t, all[0], time.Hour, nil)
		sleeper := held{tables: d}
		if err := sleeper.lock(t.Context(), rowOfLock("n")); err != nil {
			t.Fatal(err)
		}
		got := leasetest.Start(t, all[0], leasetest.Ask("n", id))
		for i := range 8 {
			time.Sleep(time.Second)
			from := time.Now()
			leasetest.Take(t, all[0], leasetest.Ask(strconv.Itoa(i), id))
			if took := time.Since(from); took > lockTimeout {
				t.Errorf("another lock took %s", took)
			}
		}
		sleeper.unlock()
		if g := <-got; g.Err != nil {
			t.Error(g.Err)
		}
	})
}

// C14, F6: the answer to a grant is there when the lease has ended.
func TestLateAnswerIsNoGrant(t *testing.T) {
	t.Parallel()
	bubbles(t, map[string]func(value){
		"the quick batch is late":     func(v value) { v.via.late <- 2 * time.Second },
		"the transaction begins late": func(v value) { v.NeverQuick(); v.via.late <- 2 * time.Second },
		"its commit is answered late": func(v value) { v.NeverQuick(); v.via.commits <- simulate.Fate{Delay: time.Second} },
	}, func(t *testing.T, delay func(value)) {
		t.Helper()
		_, all := alone(t, true, 1)
		delay(all[0])
		req := backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Timed: true, TTL: 1500 * time.Millisecond}
		if g, err := all[0].Acquire(t.Context(), req); !errors.Is(err, backend.ErrLost) {
			t.Errorf("granted after two seconds: %+v, %v", g, err)
		}
	})
}

// A session that has ended is not mended when the server's clock is set back: so a timed lease that was acquired under
// it needs no attention before its own end.
func TestEndedSessionAfterAClockSetBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, all := alone(t, true, 1)
		b := all[0]
		held := leasetest.Ask("n", leasetest.Session(t, b, time.Hour, nil))
		held.Timed, held.TTL = true, time.Hour
		leasetest.Take(t, b, held)
		if err := b.EndSession(t.Context(), held.Session); err != nil {
			t.Fatal(err)
		}
		d.mu.Lock()
		ended := d.sessions[held.Session]
		ended.Ends = time.Now().Add(2 * time.Hour)
		d.sessions[held.Session] = ended
		d.mu.Unlock()
		leasetest.Start(t, b, leasetest.Ask("n", leasetest.Session(t, b, 3*time.Hour, nil)))
		synctest.Wait()
		before := b.via.asked.Load()
		time.Sleep(30 * time.Second)
		if n := b.via.asked.Load() - before; n > 5 {
			t.Errorf("%d requests in half a minute at rest", n)
		}
	})
}

// C3, B12: three hundred waiters are in the queue, on three values. Nothing is sent while they wait, and they are granted in
// order, by notifications.
func TestQueueAtRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 300
		_, all := alone(t, true, 3)
		var ids []backend.SessionID
		for _, b := range all {
			ids = append(ids, leasetest.Session(t, b, time.Hour, nil))
		}
		held := leasetest.Ask("n", ids[0])
		last := leasetest.Take(t, all[0], held)
		var asked []backend.AcquireRequest
		var answers []<-chan leasetest.Answer
		for i := range n {
			asked = append(asked, leasetest.Ask("n", ids[i%3]))
			answers = append(answers, leasetest.Start(t, all[i%3], asked[i]))
			synctest.Wait()
		}
		sent := func() int64 { return all[0].via.asked.Load() + all[1].via.asked.Load() + all[2].via.asked.Load() }
		time.Sleep(2 * time.Second)
		before := sent()
		time.Sleep(25 * time.Second)
		if more := sent() - before; more > 0 {
			t.Errorf("%d requests were sent for waiters at rest", more)
		}
		leasetest.Give(t, all[0], held)
		for i, got := range answers {
			g := <-got
			if g.Err != nil || g.Grant.Token <= last || g.Grant.ByTimer {
				t.Fatalf("%d in the queue: %+v after token %d", i, g, last)
			}
			last = g.Grant.Token
			leasetest.Give(t, all[i%3], asked[i])
		}
	})
}

// B12: a value that polls does so rarely for what is held under a session of its own: it learns of the release. A lock that is
// handed to another value and back is found soon.
func TestPollsBehindOwnHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, all := alone(t, false, 2)
		var ids []backend.SessionID
		for _, b := range all {
			ids = append(ids, leasetest.Session(t, b, time.Hour, nil))
		}
		held := leasetest.Ask("n", ids[0])
		leasetest.Take(t, all[0], held)
		var asked []backend.AcquireRequest
		var answers []<-chan leasetest.Answer
		join := func(i int) {
			asked = append(asked, leasetest.Ask("n", ids[i]))
			answers = append(answers, leasetest.Start(t, all[i], asked[len(asked)-1]))
			synctest.Wait()
		}
		join(0)
		before := all[0].via.asked.Load()
		time.Sleep(10 * time.Second)
		if n := all[0].via.asked.Load() - before; n > 12 {
			t.Errorf("%d requests in ten seconds", n)
		}
		join(1)
		join(0)
		leasetest.Give(t, all[0], held)
		for i, by := range []int{0, 1, 0} {
			from := time.Now()
			if g := <-answers[i]; g.Err != nil || time.Since(from) > 500*time.Millisecond {
				t.Fatalf("%d in the queue, after %s: %v", i, time.Since(from), g.Err)
			}
			time.Sleep(100 * time.Millisecond)
			leasetest.Give(t, all[by], asked[i])
		}
	})
}

// B: a value that releases locks for which only other values wait remembers none of them.
func TestQueuesOfOthersAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, all := alone(t, true, 2)
		mine, theirs := leasetest.Session(t, all[0], time.Hour, nil), leasetest.Session(t, all[1], time.Hour, nil)
		for _, name := range []string{"one", "two", "three"} {
			held := leasetest.Ask(name, mine)
			leasetest.Take(t, all[0], held)
			for range 3 {
				leasetest.Start(t, all[1], leasetest.Ask(name, theirs))
				synctest.Wait()
			}
			leasetest.Give(t, all[0], held)
		}
		if n := all[0].Strange(); n != 0 {
			t.Errorf("%d locks are remembered, and none has a waiter", n)
		}
	})
}

// learned is how a caller learns of a grant, or of an end, by a read.
type learned struct {
	ask   func(ctx context.Context, b value, held, mine backend.AcquireRequest) error
	want  error
	first bool // it is asked before the lease ends, which otherwise has ended
	held  bool // the lease does not end
}

// F28: other clients see a commit before it survives a crash. Whoever learns of it by a read gets the answer after a commit of its
// own value, which the database writes to its log after the one that was seen.
func TestWhatIsToldSurvives(t *testing.T) {
	t.Parallel()
	ways := map[string]learned{
		"a grant to a waiter": {first: true, ask: func(ctx context.Context, b value, _, mine backend.AcquireRequest) error {
			_, err := b.Acquire(ctx, mine)
			return err
		}},
		"a grant, asked for again": {held: true, ask: func(ctx context.Context, b value, held, _ backend.AcquireRequest) error {
			_, err := b.Acquire(ctx, held)
			return err
		}},
		"an end, by a release": {want: backend.ErrLost, ask: func(ctx context.Context, b value, held, _ backend.AcquireRequest) error {
			return b.Release(ctx, backend.ReleaseRequest{Name: "n", Lease: held.Lease})
		}},
		"an end, by a renewal": {want: backend.ErrLost, ask: func(ctx context.Context, b value, held, _ backend.AcquireRequest) error {
			res, err := b.Renew(ctx, backend.RenewRequest{Leases: []backend.TimedRenewal{{Name: "n", Lease: held.Lease}}})
			if err == nil {
				err = res.Leases[0].Err
			}
			return err
		}},
		"the end of a session, by opening it": {want: backend.ErrSessionLost, ask: func(ctx context.Context, b value, held, _ backend.AcquireRequest) error {
			return b.OpenSession(ctx, backend.SessionRequest{ID: held.Session, TTL: time.Hour})
		}},
		"the end of a session, by a renewal": {want: backend.ErrSessionLost, ask: func(ctx context.Context, b value, held, _ backend.AcquireRequest) error {
			res, err := b.Renew(ctx, backend.RenewRequest{Session: held.Session})
			if err == nil && res.SessionLost {
				err = backend.ErrSessionLost
			}
			return err
		}},
	}
	for _, hears := range []bool{true, false} {
		bubbles(t, ways, func(t *testing.T, l learned) {
			t.Helper()
			d, all := alone(t, hears, 2)
			d.early = true
			holder, b := all[0], all[1]
			held := leasetest.Ask("n", leasetest.Session(t, holder, time.Hour, nil))
			held.Timed, held.TTL = true, time.Hour
			leasetest.Take(t, holder, held)
			mine, told := leasetest.Ask("n", leasetest.Session(t, b, time.Hour, nil)), make(chan error, 1)
			ask := func() { told <- l.ask(t.Context(), b, held, mine) }
			if l.first {
				go ask()
				synctest.Wait()
			}
			before := b.via.durable.Load()
			if !l.held {
				leasetest.Give(t, holder, held)
				if err := holder.EndSession(t.Context(), held.Session); err != nil {
					t.Fatal(err)
				}
			}
			if !l.first {
				ask()
			}
			if err := <-told; !errors.Is(err, l.want) {
				t.Errorf("told %v", err)
			}
			if b.via.durable.Load() == before {
				t.Error("told of what a crash may undo")
			}
		})
	}
}
