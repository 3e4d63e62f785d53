package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// onLane calls until the calls of one caller have a connection of their own, and returns its address.
func (c *client) onLane() string {
	c.t.Helper()
	leasetest.Eventually(c.t, "a caller alone has a connection", func() bool {
		c.give(c.take("own"))
		return c.LaneAddr() != ""
	})
	return c.LaneAddr()
}

// forever is a context that does not end: nothing watches for its end.
func forever() context.Context { return context.Background() }

// A connection that the server closed between two calls is not used: no outcome is unknown.
func TestLaneIsClosedByTheServer(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := on(t, s, cfg)
	for range 3 {
		addr := b.onLane()
		s.Do("CLIENT", "KILL", "ADDR", addr)
		leasetest.Eventually(t, "the connection is gone", func() bool { return !strings.Contains(fmt.Sprint(s.Do("CLIENT", "LIST")), addr) })
		time.Sleep(5 * time.Millisecond) // nothing is checked in the first moment after an answer
		for range 3 {
			b.give(b.take("own"))
		}
	}
}

// A call whose context ends returns immediately, and the late answer is not taken for that of another call.
func TestLaneIsInterrupted(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	cfg.RequestTimeout = patience
	b := on(t, s, cfg)
	before := b.onLane()
	s.Process().Stop()
	ctx, cancel := context.WithCancel(t.Context())
	acquire := func(ctx context.Context, req backend.AcquireRequest) <-chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := b.Acquire(ctx, req)
			ended <- err
		}()
		return ended
	}
	late := b.req("late")
	cut := acquire(ctx, late)
	leasetest.Eventually(t, "the call has the connection", func() bool { return b.LaneAddr() != before })
	hangs := acquire(forever(), b.req("beside"))
	asked := time.Now()
	cancel()
	if err := <-cut; !errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, context.Canceled) {
		t.Errorf("acquire: %v", err)
	}
	if took := time.Since(asked); took > patience/2 {
		t.Errorf("the end of the context was noticed after %s", took)
	}
	s.Process().Cont()
	if err := <-hangs; err != nil {
		t.Error(err)
	}
	g := b.take("next")
	if info, err := b.Inspect(within(t, patience), "next"); err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != g.Lease || info.Token != g.Token {
		t.Errorf("%+v, %v; want %+v", info, err, g)
	}
	b.give(g)
	if addr := b.onLane(); addr == before {
		t.Error("the connection of the call that was cut short is used again")
	}
	if err := b.drop(lease{AcquireRequest: late}); err != nil && !errors.Is(err, backend.ErrLost) {
		t.Error(err)
	}
}

// The end of a context is also noticed when the goroutine of the call was not run for a while before it had its connection.
func TestLaneIsTakenLate(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	cfg.RequestTimeout = patience
	b := on(t, s, cfg)
	b.Intercept(func(_ string, do func()) {
		time.Sleep(50 * time.Millisecond)
		do()
	})
	b.onLane()
	s.Process().Stop()
	defer s.Process().Cont()
	asked := time.Now()
	if _, err := b.Acquire(within(t, time.Second), b.req("late")); err == nil {
		t.Error("granted by a server that is stopped")
	}
	if took := time.Since(asked); took > patience/2 {
		t.Errorf("the end of the context was noticed after %s", took)
	}
}

// A server that does not answer is unavailable after the request time-out, also for a caller whose
// context does not end. Close ends such a call.
func TestLaneWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	t.Run("time-out", func(t *testing.T) {
		t.Parallel()
		s, cfg := quick(t)
		cfg.RequestTimeout = 5 * time.Second // a busy machine answers in this time until the server stops
		b := on(t, s, cfg)
		b.onLane()
		s.Process().Stop()
		defer s.Process().Cont()
		_, err := b.Acquire(forever(), b.req("x"))
		if away(t, "acquire", err, true); !strings.Contains(fmt.Sprint(err), "no answer within") {
			t.Errorf("%v; want a time-out", err)
		}
	})
	t.Run("close", func(t *testing.T) {
		t.Parallel()
		s := testserver.Redis(t)
		b := on(t, s, redislock.Config{Quarantine: redislock.NoQuarantine, RequestTimeout: 20 * time.Second})
		lane := b.onLane()
		s.Process().Stop()
		ended, closed := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := b.Acquire(forever(), b.req("x"))
			ended <- err
		}()
		leasetest.Eventually(t, "the call has taken the connection", func() bool { return b.LaneAddr() != lane })
		go func() { closed <- b.Close() }()
		select {
		case err := <-ended:
			is(t, "acquire", err, backend.ErrClosed)
		case <-time.After(10 * time.Second):
			t.Error("Close does not end the call")
		}
		s.Process().Cont()
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}
