package sqllease_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// C8: a waiter that is dead delays those behind it in a long queue by its session's TTL and hardly more, wherever it is,
// also where nobody is notified.
func TestDeadWaiterInALongQueue(t *testing.T) {
	t.Parallel()
	for _, hears := range []bool{true, false} {
		for _, before := range []int{0, 15, 16, 30} {
			t.Run(fmt.Sprintf("hears=%v,before=%d", hears, before), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { deadWaiter(t, hears, before) })
			})
		}
	}
}

// deadWaiter has that many writers in a queue, a reader, a writer whose process dies, and more readers, of another value:
// only that one can find out.
func deadWaiter(t *testing.T, hears bool, before int) {
	t.Helper()
	const readers, ttl = 40, 20 * time.Second
	d := newTables()
	var all []value
	var ids []backend.SessionID
	for i := range 4 {
		b := d.open(nil, hears)
		defer b.Leases.Close()
		b.KeepStill()
		life := time.Hour
		if i == 3 {
			life = ttl
		}
		all, ids = append(all, b), append(ids, leasetest.Session(t, b, life, nil))
	}
	end := time.Now().Add(ttl)
	ask := func(i int, mode backend.Mode) backend.AcquireRequest {
		req := leasetest.Ask("n", ids[i])
		if req.Mode = mode; mode == backend.Shared {
			req.Limit = readers + 1
		}
		return req
	}
	start := func(i int, req backend.AcquireRequest) <-chan leasetest.Answer {
		got := leasetest.Start(t, all[i], req)
		synctest.Wait()
		return got
	}
	held := ask(0, backend.Shared)
	leasetest.Take(t, all[0], held)
	var writers []backend.AcquireRequest
	var answers, last []<-chan leasetest.Answer
	for range before {
		w := ask(1, backend.Exclusive)
		writers, answers = append(writers, w), append(answers, start(1, w))
	}
	if before > 0 {
		answers = append(answers, start(0, ask(0, backend.Shared)))
	}
	start(3, ask(3, backend.Exclusive))
	all[3].Leases.Close()
	for range readers {
		last = append(last, start(2, ask(2, backend.Shared)))
	}
	time.Sleep(2 * time.Second)
	if before > 0 {
		leasetest.Give(t, all[0], held)
	}
	for i, got := range answers {
		if g := <-got; g.Err != nil {
			t.Fatalf("%d in the queue: %v", i, g.Err)
		}
		if i < len(writers) {
			leasetest.Give(t, all[1], writers[i])
		}
	}
	for i, got := range last {
		if g := <-got; g.Err != nil {
			t.Errorf("reader %d: %v", i, g.Err)
		}
	}
	if late := time.Since(end); late > 1500*time.Millisecond {
		t.Errorf("the last reader had the lock %s after the end of the dead waiter's session", late)
	}
}
