package elector_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/elector"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const election, ttl = "scheduler", 10 * time.Second

// away is a backend that can be unreachable: calls hang until their context ends.
type away struct {
	backend.Backend
	cut     atomic.Bool
	noWatch bool
	inspect func() backend.LockInfo // the answer of Inspect; nil: the true one
}

func (a *away) Capabilities() backend.Capabilities {
	c := a.Backend.Capabilities()
	c.Watch = c.Watch && !a.noWatch
	return c
}

func (a *away) reach(ctx context.Context) error {
	if !a.cut.Load() {
		return nil
	}
	<-ctx.Done()
	return &backend.UnavailableError{Backend: "memory", Op: "test", MayHold: true, Err: context.Cause(ctx)}
}

func (a *away) Inspect(ctx context.Context, name string) (backend.LockInfo, error) {
	if a.inspect != nil {
		return a.inspect(), nil
	}
	return a.Backend.Inspect(ctx, name)
}

func (a *away) Renew(ctx context.Context, req backend.RenewRequest) (backend.RenewResult, error) {
	if err := a.reach(ctx); err != nil {
		return backend.RenewResult{}, err
	}
	return a.Backend.Renew(ctx, req)
}

func (a *away) OpenSession(ctx context.Context, req backend.SessionRequest) error {
	if err := a.reach(ctx); err != nil {
		return err
	}
	return a.Backend.OpenSession(ctx, req)
}

func (a *away) Release(ctx context.Context, req backend.ReleaseRequest) error {
	if err := a.reach(ctx); err != nil {
		return err
	}
	return a.Backend.Release(ctx, req)
}

// client returns a client on the store, with a backend value of its own.
func client(t *testing.T, store *memlock.Store, owner string) (*holdfast.Client, *away) {
	t.Helper()
	return clientOn(t, &away{Backend: store.Open()}, owner)
}

func clientOn(t *testing.T, b *away, owner string) (*holdfast.Client, *away) {
	t.Helper()
	c, err := holdfast.New(b, holdfast.Config{TTL: ttl, Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.cut.Store(false)
		if err := errors.Join(c.Close(context.WithoutCancel(t.Context())), b.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c, b
}

func candidate(t *testing.T, c *holdfast.Client, cfg elector.Config) *elector.Elector {
	t.Helper()
	e, err := elector.New(c, election, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// stage observes who leads: never two at the same time.
type stage struct {
	t       *testing.T
	mu      sync.Mutex
	leading []context.Context // of all leaders so far
	tokens  []fence.Token
}

// lead leads until its context ends. The contexts of all earlier leaders have ended, though their
// goroutines may not have seen it.
func (s *stage) lead(ctx context.Context, term *elector.Term) error {
	s.mu.Lock()
	for _, before := range s.leading {
		if before.Err() == nil {
			s.t.Error("two candidates lead at the same time")
		}
	}
	s.leading, s.tokens = append(s.leading, ctx), append(s.tokens, term.Token())
	s.mu.Unlock()
	<-ctx.Done()
	return context.Cause(ctx)
}

func (s *stage) terms() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tokens)
}

// TestLossEndsTheTermInTime cuts the leader off. Its context ends before another leads, it learns
// of the loss, it campaigns again when the backend is back, and the tokens grow.
func TestLossEndsTheTermInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		one, wire := client(t, store, "one")
		two, _ := client(t, store, "two")
		var lost, gained atomic.Int32
		a := candidate(t, one, elector.Config{Hooks: elector.Hooks{
			Gained: func(context.Context, *elector.Term) { gained.Add(1) },
			Lost: func(_ context.Context, term *elector.Term, err error) {
				var why *holdfast.LostError
				if !errors.As(err, &why) || why.Cause != holdfast.CauseDeadline || why.Token != term.Token() {
					t.Errorf("lost with %v", err)
				}
				lost.Add(1)
			},
		}})
		b := candidate(t, two, elector.Config{})
		ctx, stop := context.WithCancel(t.Context())
		s := &stage{t: t}
		var wg sync.WaitGroup
		wg.Go(func() { _ = a.Run(ctx, s.lead) })
		synctest.Wait()
		wg.Go(func() { _ = b.Run(ctx, s.lead) })
		synctest.Wait()
		if a.Term() == nil || b.Term() != nil {
			t.Fatalf("a has %v, b has %v", a.Term(), b.Term())
		}
		wire.cut.Store(true)
		time.Sleep(ttl + 2*time.Second)
		synctest.Wait()
		if a.Term() != nil || b.Term() == nil || lost.Load() != 1 {
			t.Fatalf("after the cut a has %v, b has %v, lost %d", a.Term(), b.Term(), lost.Load())
		}
		wire.cut.Store(false)
		time.Sleep(ttl)
		if err := b.Term().Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if a.Term() == nil || gained.Load() != 2 || s.terms() != 3 || !slices.IsSorted(s.tokens) {
			t.Errorf("a does not lead again: %v, gained %d, terms %v", a.Term(), gained.Load(), s.tokens)
		}
		stop()
		wg.Wait()
	})
}

// TestShutdownHandsOver ends a leader's Run: the next in the queue leads immediately, in order.
func TestShutdownHandsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memlock.NewStore()
		s := &stage{t: t}
		var stops []context.CancelCauseFunc
		var es []*elector.Elector
		var wg sync.WaitGroup
		errStop := errors.New("the service is stopped")
		for i := range 5 {
			c, _ := client(t, store, "")
			e := candidate(t, c, elector.Config{Candidate: string(rune('a' + i)), Value: "at home"})
			ctx, stop := context.WithCancelCause(t.Context())
			es, stops = append(es, e), append(stops, stop)
			wg.Go(func() {
				if err := e.Run(ctx, s.lead); !errors.Is(err, errStop) {
					t.Errorf("Run: %v, want the cause of its context", err)
				}
			})
			synctest.Wait()
		}
		queue, err := es[0].Candidates(t.Context())
		if err != nil || len(queue) != 4 || queue[0].Candidate != "b" || queue[3].Candidate != "e" || queue[0].Value != "at home" {
			t.Errorf("candidates %+v, %v", queue, err)
		}
		for i, e := range es {
			l, err := e.Leader(t.Context())
			if err != nil || l.Candidate != string(rune('a'+i)) || l.Value != "at home" || !l.Self || e.Term() == nil || e.Term().Token() != l.Token {
				t.Errorf("leader %d is %+v, %v", i, l, err)
			}
			began := time.Now()
			stops[i](errStop)
			synctest.Wait()
			if took := time.Since(began); took != 0 {
				t.Errorf("the hand-over took a timer: %s", took)
			}
		}
		wg.Wait()
		if _, err := es[0].Leader(t.Context()); !errors.Is(err, elector.ErrNoLeader) {
			t.Errorf("Leader of an election without candidates: %v", err)
		}
	})
}

// TestLeadReturns checks what happens to the function's result.
func TestLeadReturns(t *testing.T) {
	t.Parallel()
	errOwn := errors.New("its own")
	for name, tc := range map[string]struct {
		lead  func(context.Context, int32, *elector.Term) error
		terms int32
		want  error
	}{
		"nil stands again": {func(_ context.Context, n int32, _ *elector.Term) error {
			if n < 4 {
				return nil
			}
			return errOwn
		}, 4, errOwn},
		"an error ends it": {func(context.Context, int32, *elector.Term) error { return errOwn }, 1, errOwn},
		"own resignation": {func(ctx context.Context, n int32, term *elector.Term) error {
			if n == 2 {
				return errOwn
			}
			return term.Resign(context.WithoutCancel(ctx))
		}, 2, errOwn},
		"resigned, then its context's error": {func(ctx context.Context, n int32, term *elector.Term) error {
			if n == 2 {
				return errOwn
			}
			_ = term.Resign(context.WithoutCancel(ctx))
			return context.Cause(term.Context())
		}, 2, errOwn},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, _ := client(t, memlock.NewStore(), "")
				var resigned atomic.Int32
				e := candidate(t, c, elector.Config{Hooks: elector.Hooks{Resigned: func(_ context.Context, _ *elector.Term, err error) {
					if err != nil {
						t.Errorf("resigned: %v", err)
					}
					resigned.Add(1)
				}}})
				var n atomic.Int32
				err := e.Run(t.Context(), func(ctx context.Context, term *elector.Term) error { return tc.lead(ctx, n.Add(1), term) })
				if !errors.Is(err, tc.want) || n.Load() != tc.terms || resigned.Load() != tc.terms {
					t.Errorf("%v after %d terms, %d resigned", err, n.Load(), resigned.Load())
				}
				if e.Term() != nil {
					t.Error("it leads still")
				}
			})
		})
	}
}

// TestPanicResigns: a function that panics leaves nothing behind.
func TestPanicResigns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := client(t, memlock.NewStore(), "")
		e := candidate(t, c, elector.Config{})
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic is gone")
				}
			}()
			_ = e.Run(t.Context(), func(context.Context, *elector.Term) error { panic("oops") })
		}()
		if _, err := e.Leader(t.Context()); !errors.Is(err, elector.ErrNoLeader) {
			t.Errorf("after the panic: %v", err)
		}
		if term, err := e.Campaign(t.Context()); err != nil {
			t.Error(err)
		} else if err := term.Resign(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestOnlyOnce: an elector campaigns once at a time.
func TestOnlyOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := client(t, memlock.NewStore(), "")
		e := candidate(t, c, elector.Config{})
		term, err := e.Campaign(t.Context())
		if err != nil || term.Began().After(time.Now()) {
			t.Fatal(err)
		}
		if _, err := e.Campaign(t.Context()); !errors.Is(err, elector.ErrRunning) {
			t.Errorf("second campaign: %v", err)
		}
		if err := e.Run(t.Context(), func(context.Context, *elector.Term) error { return nil }); !errors.Is(err, elector.ErrRunning) {
			t.Errorf("run while it leads: %v", err)
		}
		if err := term.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if again, err := e.Campaign(t.Context()); err != nil {
			t.Errorf("right after its resignation: %v", err)
		} else if err := again.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		if err := term.Resign(t.Context()); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("resigned twice: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		other, _ := client(t, memlock.NewStore(), "")
		if _, err := candidate(t, other, elector.Config{}).Campaign(ctx); err != nil {
			t.Errorf("another election: %v", err)
		}
		if again, err := e.Campaign(ctx); err != nil {
			t.Errorf("it may stand again: %v", err)
		} else if err := again.Resign(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestObserve observes a sequence of leaders, with events and without.
func TestObserve(t *testing.T) {
	t.Parallel()
	for _, noWatch := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := memlock.NewStore()
			c, _ := clientOn(t, &away{Backend: store.Open(), noWatch: noWatch}, "observer")
			o := candidate(t, c, elector.Config{})
			ctx, stop := context.WithCancel(t.Context())
			var mu sync.Mutex
			var seen []elector.Leader
			var wg sync.WaitGroup
			wg.Go(func() {
				err := o.Observe(ctx, func(l elector.Leader) {
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, l)
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("Observe: %v", err)
				}
			})
			other, _ := client(t, store, "")
			for _, name := range []string{"a", "b"} {
				time.Sleep(5 * time.Second)
				e := candidate(t, other, elector.Config{Candidate: name, Value: name + ":80"})
				term, err := e.Campaign(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second)
				if err := term.Resign(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(5 * time.Second)
			stop()
			wg.Wait()
			var got []string
			for _, l := range seen {
				got = append(got, l.Candidate+"="+l.Value)
				if l.Self || (l.Token == 0) != (l.Candidate == "") {
					t.Errorf("%+v", l)
				}
			}
			if want := []string{"=", "a=a:80", "=", "b=b:80", "="}; !slices.Equal(got, want) {
				t.Errorf("with events %t: saw %q, want %q", !noWatch, got, want)
			}
		})
	}
}

// TestObserveOldAnswers gives an observer answers that are older than the one before, as a lagging
// server does. The observer ends with the true leader, and sees no older term.
func TestObserveOldAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, b := clientOn(t, &away{Backend: memlock.New(), noWatch: true}, "observer")
		o := candidate(t, c, elector.Config{})
		term := func(owner string, token fence.Token) backend.LockInfo {
			return backend.LockInfo{Name: election, Holders: []backend.Holder{{Owner: owner, Token: token}}}
		}
		shared := term("reader", 9)
		shared.Holders[0].Mode = backend.Shared
		answers := []backend.LockInfo{term("a", 3), {}, term("a", 3), term("z", 1), term("b", 5), term("a", 3), term("b", 5), shared}
		var asked int
		b.inspect = func() backend.LockInfo {
			asked++
			return answers[min(asked, len(answers))-1]
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		var seen []string
		if err := o.Observe(ctx, func(l elector.Leader) { seen = append(seen, l.Candidate) }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Observe: %v", err)
		}
		if want := []string{"a", "", "a", "b", ""}; asked <= len(answers) || !slices.Equal(seen, want) {
			t.Errorf("asked %d times and saw %q, want %q", asked, seen, want)
		}
	})
}

// TestBadInput: bad input is refused with a typed error, before anything is sent.
func TestBadInput(t *testing.T) {
	t.Parallel()
	c, _ := client(t, memlock.NewStore(), "")
	if _, err := elector.New(c, election, elector.Config{Rest: -1}); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("rest: %v", err)
	}
	if err := candidate(t, c, elector.Config{}).Run(t.Context(), nil); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("no function: %v", err)
	}
	for name, cfg := range map[string]elector.Config{
		"candidate": {Candidate: "a\x00b"}, "value": {Value: string(make([]byte, 1025))},
	} {
		e := candidate(t, c, cfg)
		if _, err := e.Campaign(t.Context()); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := e.Campaign(t.Context()); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%s, again: %v", name, err)
		}
	}
	e, err := elector.New(c, "", elector.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Observe(t.Context(), func(elector.Leader) {}); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("no name: %v", err)
	}
}
