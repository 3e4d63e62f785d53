package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// pairs acquires and releases locks of their own, one after the other.
func pairs(t *testing.T, b *redislock.Backend, id backend.SessionID, n int) {
	t.Helper()
	for i := range n {
		release(t, b, acquire(t, b, backend.AcquireRequest{Name: fmt.Sprintf("own/%d", i), Session: id}))
	}
}

// onLane calls until the calls of one caller have a connection of their own, and returns its address.
func onLane(t *testing.T, b *redislock.Backend, id backend.SessionID) string {
	t.Helper()
	leasetest.Eventually(t, "a caller alone has a connection", func() bool {
		pairs(t, b, id, 1)
		return b.LaneAddr() != ""
	})
	return b.LaneAddr()
}

// forever is a context that does not end: nothing watches for its end.
func forever() context.Context { return context.Background() }

// A connection that the server closed between two calls is not used: no outcome is unknown.
func TestLaneIsClosedByTheServer(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	for range 3 {
		addr := onLane(t, b, id)
		s.Do("CLIENT", "KILL", "ADDR", addr)
		leasetest.Eventually(t, "the connection is gone", func() bool {
			list, _ := s.Do("CLIENT", "LIST").(string)
			return !strings.Contains(list, addr)
		})
		time.Sleep(5 * time.Millisecond) // nothing is checked in the first moment after an answer
		pairs(t, b, id, 3)
	}
}

// A call whose context ends returns immediately, and the late answer is not taken for that of another call.
func TestLaneIsInterrupted(t *testing.T) {
	t.Parallel()
	s, cfg := quick(t)
	cfg.RequestTimeout = patience
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	before := onLane(t, b, id)
	s.Process().Stop()
	ctx, cancel := context.WithCancel(t.Context())
	asked := time.Now()
	time.AfterFunc(20*time.Millisecond, cancel)
	late := backend.AcquireRequest{Name: "late", Lease: backend.NewLeaseID(), Session: id}
	if _, err := b.Acquire(ctx, late); !errors.Is(err, backend.ErrUnavailable) && !errors.Is(err, context.Canceled) {
		t.Errorf("acquire: %v", err)
	}
	if took := time.Since(asked); took > patience/2 {
		t.Errorf("the end of the context was noticed after %s", took)
	}
	s.Process().Cont()
	g := acquire(t, b, backend.AcquireRequest{Name: "next", Session: id})
	if info, err := b.Inspect(within(t, patience), "next"); err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != g.Lease || info.Token != g.Token {
		t.Errorf("%+v, %v; want %+v", info, err, g)
	}
	release(t, b, g)
	if addr := onLane(t, b, id); addr == before {
		t.Error("the connection of the call that was cut short is used again")
	}
	if err := b.Release(within(t, patience), backend.ReleaseRequest{Name: "late", Lease: late.Lease, Session: id, Abandon: true}); err != nil && !errors.Is(err, backend.ErrLost) {
		t.Error(err)
	}
}

// The end of a context just after the answer ends no call of another.
func TestLaneIsInterruptedLate(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s, cfg := quick(t)
	b := open(t, s, cfg)
	id := session(t, b, time.Hour)
	onLane(t, b, id)
	for range 500 {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Duration(rand.IntN(300))*time.Microsecond, cancel)
		req := backend.AcquireRequest{Name: "cut", Lease: backend.NewLeaseID(), Session: id}
		_, _ = b.Acquire(ctx, req) // with any outcome
		cancel()
		if _, err := b.Acquire(forever(), backend.AcquireRequest{Name: "free", Lease: req.Lease, Session: id}); err != nil {
			t.Fatalf("a call after one that was cut short: %v", err)
		}
		for _, name := range []string{"free", "cut"} {
			err := b.Release(forever(), backend.ReleaseRequest{Name: name, Lease: req.Lease, Session: id, Abandon: name == "cut"})
			if err != nil && (name == "free" || !errors.Is(err, backend.ErrLost)) {
				t.Fatalf("release of %s: %v", name, err)
			}
		}
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
		b := open(t, s, cfg)
		id := session(t, b, time.Hour)
		onLane(t, b, id)
		s.Process().Stop()
		defer s.Process().Cont()
		_, err := b.Acquire(forever(), backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Session: id})
		if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold || !strings.Contains(err.Error(), "no answer within") {
			t.Errorf("%v; want a time-out with an unknown outcome", err)
		}
	})
	t.Run("close", func(t *testing.T) {
		t.Parallel()
		s := testserver.Redis(t)
		b, err := redislock.Open(t.Context(), "redis://"+s.Addr(), redislock.Config{Quarantine: redislock.NoQuarantine, RequestTimeout: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		id := session(t, b, time.Hour)
		onLane(t, b, id)
		lane := b.LaneAddr()
		s.Process().Stop()
		ended := make(chan error, 1)
		go func() {
			_, err := b.Acquire(forever(), backend.AcquireRequest{Name: "x", Lease: backend.NewLeaseID(), Session: id})
			ended <- err
		}()
		leasetest.Eventually(t, "the call has taken the connection", func() bool { return b.LaneAddr() != lane })
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		select {
		case err := <-ended:
			if !errors.Is(err, backend.ErrClosed) {
				t.Errorf("%v; want ErrClosed", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Close does not end the call")
		}
		s.Process().Cont()
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}
