package connlease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/connlease"
	"github.com/holdfast-io/holdfast/internal/retry"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// silent is a database that does not answer the call with this name. Its connections work.
type silent struct {
	database

	question string
}

func (s *silent) ask(ctx context.Context, question string) error {
	if question != s.question {
		return nil
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (s *silent) Setup(ctx context.Context) error { return s.ask(ctx, "setup") }

func (s *silent) Connect(ctx context.Context, _ backend.SessionID, _ time.Duration, _ func(connlease.Note)) (connlease.Conn, error) {
	return connection{&s.database}, s.ask(ctx, "connect")
}

func (s *silent) Look(ctx context.Context, _ []string) (map[string]backend.LockInfo, error) {
	if s.question == "terminate" {
		return map[string]backend.LockInfo{"n": {Holders: make([]backend.Holder, 1)}}, nil
	}
	return nil, s.ask(ctx, "look")
}

func (s *silent) Names(ctx context.Context, _ backend.ListRequest, _ int) ([]string, error) {
	return []string{"n"}, s.ask(ctx, "names")
}

func (s *silent) Mark(ctx context.Context, _ connlease.Mark) (fence.Token, []connlease.Marked, error) {
	return 1, []connlease.Marked{{}}, s.ask(ctx, "mark")
}

func (s *silent) Terminate(ctx context.Context, _ []string) error {
	return s.ask(ctx, "terminate")
}

// TestSilentDatabase checks that a call ends although the database neither answers nor reports an
// error, and the caller has set no time limit.
func TestSilentDatabase(t *testing.T) {
	t.Parallel()
	type call = func(context.Context, *connlease.Leases) error
	open := func(ctx context.Context, b *connlease.Leases) error {
		return b.OpenSession(ctx, backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Hour})
	}
	inspect := func(ctx context.Context, b *connlease.Leases) error {
		_, err := b.Inspect(ctx, "n")
		return err
	}
	list := func(ctx context.Context, b *connlease.Leases) error {
		_, err := b.List(ctx, backend.ListRequest{})
		return err
	}
	breaks := func(ctx context.Context, b *connlease.Leases) error {
		_, err := b.Break(ctx, backend.BreakRequest{Name: "n"})
		return err
	}
	for question, c := range map[string]struct {
		do   call
		most time.Duration
	}{
		"setup": {inspect, time.Minute}, "connect": {open, 10 * time.Second}, "look": {inspect, 10 * time.Second},
		"names": {list, 10 * time.Second}, "mark": {breaks, 10 * time.Second},
		"terminate": {breaks, 16 * time.Second}, // after the five seconds that a holder has
	} {
		t.Run(question, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &silent{question: question}
				b := connlease.New(connlease.Config{
					Store: s, Rest: retry.Rest{Least: time.Hour, Longest: time.Hour},
					Caps: backend.Capabilities{Name: "database", Sessions: true, MinTTL: time.Second, MaxTTL: 24 * time.Hour},
				})
				defer b.Close()
				begun := time.Now()
				if err := c.do(context.WithoutCancel(t.Context()), b); !errors.Is(err, backend.ErrUnavailable) {
					t.Errorf("%v", err)
				}
				if took := time.Since(begun); took > c.most {
					t.Errorf("after %s, at most %s", took, c.most)
				}
			})
		})
	}
}

// A refusal that cannot be read says that the lease may be held if another call waits for it.
func TestRefusalOfALeaseInQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &silent{question: "look"}
		s.set(true)
		b, id := open(t, s)
		req := leasetest.Ask("n", id)
		had := start(t, b, req)
		synctest.Wait()
		again := req
		again.Wait = false
		_, err := b.Acquire(t.Context(), again)
		if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || !away.MayHold {
			t.Errorf("%v, want an unknown outcome", err)
		}
		b.Close()
		if err := <-had; !errors.Is(err, backend.ErrClosed) {
			t.Errorf("the waiter: %v", err)
		}
	})
}

// What needs a database that cannot be set up was not done.
func TestNothingIsDoneBeforeTheSetUp(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(context.Context, *connlease.Leases) error{
		"open session": func(ctx context.Context, b *connlease.Leases) error {
			return b.OpenSession(ctx, backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Hour})
		},
		"break": func(ctx context.Context, b *connlease.Leases) error {
			_, err := b.Break(ctx, backend.BreakRequest{Name: "n"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := connlease.New(connlease.Config{
					Store: &silent{question: "setup"}, Caps: backend.Capabilities{Name: "database", Sessions: true, MinTTL: time.Second, MaxTTL: 24 * time.Hour},
				})
				defer b.Close()
				err := do(t.Context(), b)
				if away, ok := errors.AsType[*backend.UnavailableError](err); !ok || away.MayHold {
					t.Errorf("%v, want that nothing was done", err)
				}
			})
		})
	}
}

// C10: a loss that no answered renewal has reported is reported by the next one that is answered, however many were not.
func TestLossAfterLostAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inside := &holders{all: make(map[string]map[backend.LeaseID]backend.Mode)}
		p := openProcess(t, newServer(), time.Hour, inside, false)
		req := leasetest.Ask("n", p.id)
		if _, err := p.b.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if _, err := p.b.Break(t.Context(), backend.BreakRequest{Name: "n"}); err != nil {
			t.Fatal(err)
		}
		renew := func(patience time.Duration) (backend.RenewResult, error) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return p.b.Renew(ctx, backend.RenewRequest{Session: p.id})
		}
		for range 3 {
			if _, err := renew(time.Nanosecond); err == nil {
				t.Fatal("the answer was not lost")
			}
			time.Sleep(time.Second)
		}
		res, err := renew(time.Minute)
		if err != nil || len(res.Lost) != 1 || res.Lost[0].Lease != req.Lease {
			t.Errorf("%+v, %v; want the loss of the lease", res, err)
		}
	})
}
