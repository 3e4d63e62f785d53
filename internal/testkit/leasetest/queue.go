package leasetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
)

// longQueue (C1, C3): only the front of a long queue is read, and no client notices.
func longQueue(t *testing.T, s *Tables) {
	t.Helper()
	const n = 60
	b, other := s.open(), s.open()
	values := []backend.Backend{b, other}
	sessions := []backend.SessionID{Session(t, b, time.Hour, nil), Session(t, other, time.Hour, nil)}
	held := Ask("n", sessions[0])
	last := Take(t, b, held)
	asked, answers := make([]backend.AcquireRequest, n), make([]<-chan Answer, n)
	queue := func(from, to int, mode backend.Mode, limit int) {
		for i := from; i < to; i++ {
			asked[i] = Ask("n", sessions[i%2])
			asked[i].Mode, asked[i].Limit = mode, limit
			answers[i] = Start(t, values[i%2], asked[i])
			InQueue(t, b, "n", i+1)
		}
	}
	gives := func(i int, v backend.Backend) {
		t.Helper()
		if g := <-answers[i]; g.Err != nil {
			t.Fatalf("%d in the queue: %v", i, g.Err)
		} else if g.Grant.Token <= last {
			t.Fatalf("%d in the queue has token %d after %d", i, g.Grant.Token, last)
		} else {
			last = g.Grant.Token
		}
		Give(t, v, asked[i])
	}
	// One after the other. Behind them are some that are granted together.
	queue(0, n/2, backend.Exclusive, 0)
	queue(n/2, n, backend.Shared, n)

	asksTooMuch := Ask("n", sessions[0])
	asksTooMuch.Mode, asksTooMuch.Limit = backend.Shared, n-1
	var limit *backend.LimitError
	if _, err := b.Acquire(Within(t), asksTooMuch); !errors.As(err, &limit) || limit.InForce != n {
		t.Errorf("another limit: %v", err)
	}
	tries, again := Ask("n", sessions[0]), asked[n-10]
	tries.Wait, again.Wait = false, false
	for _, x := range []struct {
		req   backend.AcquireRequest
		ahead int
	}{{tries, n}, {again, n - 10}} {
		var is *backend.HeldError
		if _, err := b.Acquire(Within(t), x.req); !errors.As(err, &is) || is.Ahead != x.ahead {
			t.Errorf("%d are ahead: %v", x.ahead, err)
		}
	}
	// One in the middle of the waiters that are not read leaves, and cannot come back.
	gone := asked[n-5]
	ctx, cancel := context.WithCancel(Within(t))
	defer cancel()
	if err := values[(n-5)%2].Release(ctx, backend.ReleaseRequest{Name: "n", Lease: gone.Lease, Session: gone.Session, Abandon: true}); err != nil {
		t.Fatal(err)
	}
	if g := <-answers[n-5]; !errors.Is(g.Err, backend.ErrLost) {
		t.Errorf("who left was told %v", g.Err)
	}
	InQueue(t, b, "n", n-1)

	Give(t, b, held)
	for i := range n / 2 {
		gives(i, values[i%2])
	}
	tokens := make([]fence.Token, 0, n)
	for i := n / 2; i < n; i++ {
		if i == n-5 {
			continue
		}
		g := <-answers[i]
		if g.Err != nil {
			t.Fatalf("%d in the queue: %v", i, g.Err)
		}
		tokens = append(tokens, g.Grant.Token)
	}
	for i, token := range tokens {
		if token <= last {
			t.Errorf("the %dth of those that go together has token %d after %d", i, token, last)
		}
		last = token
	}
	if info, err := b.Inspect(Within(t), "n"); err != nil || len(info.Holders) != n/2-1 || len(info.Waiters) != 0 {
		t.Errorf("%d hold it and %d wait, %v", len(info.Holders), len(info.Waiters), err)
	}
}
