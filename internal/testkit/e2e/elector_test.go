package e2e_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/elector"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/open"
)

const (
	pausedTTL = 16 * time.Second // a leader survives a store that stands still for some seconds
	// electionTTL is so long that it never elapses in a test.
	electionTTL = 4 * time.Minute
	// electionPatience bounds the wait for something that must happen.
	electionPatience = 2 * time.Minute
	// resignTimeout is how long a leader waits for the answer to its resignation.
	resignTimeout = 5 * time.Second
)

var errShutdown = errors.New("the service is stopped")

// electionClient returns a client with a connection of its own.
func electionClient(t *testing.T, url string, cfg holdfast.Config) *holdfast.Client {
	t.Helper()
	b, err := open.URL(t.Context(), url, open.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cfg.TTL = min(cfg.TTL, b.Capabilities().MaxTTL)
	c, err := holdfast.New(b, cfg)
	if err != nil {
		t.Fatal(errors.Join(err, b.Close()))
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(context.WithoutCancel(t.Context())), b.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// awaitThat waits until the condition holds.
func awaitThat(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(electionPatience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %s: %s", electionPatience, what)
		case <-tick.C:
		}
	}
}

func candidate(t *testing.T, c *holdfast.Client, cfg elector.Config) *elector.Elector {
	t.Helper()
	e, err := elector.New(c, t.Name(), cfg)
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
	ended   map[fence.Token]time.Time // when the context of a term had ended
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
	s.mu.Lock()
	s.ended[term.Token()] = time.Now()
	s.mu.Unlock()
	return context.Cause(ctx)
}

// resigned is told of each resignation. It may be without an answer when the store was slow.
func (s *stage) resigned(name string, term *elector.Term, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if took := time.Since(s.ended[term.Token()]); err != nil && took < resignTimeout {
		s.t.Errorf("%s resigns: %v after %s", name, err, took)
	}
}

func (s *stage) terms() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tokens)
}

// campaigns waits until the candidate of that name is in the queue, where the backend reports its
// queue.
func campaigns(t *testing.T, e *elector.Elector, c *holdfast.Client, name string) {
	t.Helper()
	if !c.Capabilities().FIFO {
		return
	}
	awaitThat(t, name+" is in the queue", func() bool {
		queue, err := e.Candidates(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(queue, func(c elector.Candidate) bool { return c.Candidate == name })
	})
}

// witness records the leaders that were reported to an observer.
type witness struct {
	mu   sync.Mutex
	seen []elector.Leader
}

func (w *witness) watch(t *testing.T, e *elector.Elector) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() {
		done <- e.Observe(ctx, func(l elector.Leader) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.seen = append(w.seen, l)
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Observe: %v", err)
		}
	})
}

// saw waits until the leader of that term was reported to the observer.
func (w *witness) saw(t *testing.T, name string, term int64) {
	t.Helper()
	awaitThat(t, "the observer knows "+name, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.seen, func(l elector.Leader) bool {
			return l.Candidate == name && l.Value == name+":80" && int64(l.Token) == term && !l.Self
		})
	})
}

// C9, F1: the leader's process is stopped past its lease. The next in the queue leads with a
// greater token. When the first one resumes, its context has ended before it can check it, and the
// context was never alive while the other led. The first learns of its loss, campaigns again, and
// leads again when the other shuts down.
func TestLeaderStopped(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	sideBySide(t, sharedStores(), func(t *testing.T, _ string, start func(t *testing.T) string) { //nolint:thelper // it is the test
		url := start(t)
		c := electionClient(t, url, holdfast.Config{TTL: pausedTTL, Owner: "b"})
		gained, resigned := make(chan int64, 1), make(chan error, 1)
		b := candidate(t, c, elector.Config{Candidate: "b", Value: "b:80", Hooks: elector.Hooks{
			Lost:     func(_ context.Context, _ *elector.Term, err error) { t.Errorf("b lost: %v", err) },
			Resigned: func(_ context.Context, _ *elector.Term, err error) { resigned <- err },
		}})
		var w witness
		w.watch(t, candidate(t, electionClient(t, url, holdfast.Config{TTL: pausedTTL}), elector.Config{}))

		a := startCandidate(t, url)
		first := a.says("gained")[0]
		w.saw(t, "a", first)
		ctx, shutdown := context.WithCancelCause(t.Context())
		ran := make(chan error, 1)
		var second int64
		go func() {
			ran <- b.Run(ctx, func(ctx context.Context, term *elector.Term) error {
				at, err := monotonicNow()
				second = int64(term.Token())
				gained <- at
				<-ctx.Done()
				return err
			})
		}()
		defer shutdown(errShutdown)
		campaigns(t, b, c, "b")
		a.tell("spin")
		a.says("spinning")

		a.signal(syscall.SIGSTOP)
		var at int64
		select {
		case at = <-gained:
		case <-time.After(electionPatience):
			t.Fatal("b does not lead")
		}
		w.saw(t, "b", second)
		a.signal(syscall.SIGCONT)
		led := a.says("led")
		if led[0] != first || led[1] == 0 || led[1] >= at {
			t.Errorf("a, term %d of %d, led %s after b did", led[0], first, time.Duration(led[1]-at))
		}
		if lost := a.says("lost")[0]; lost != first || second <= first {
			t.Errorf("a was told of the end of term %d; its term was %d, and that of b %d", lost, first, second)
		}

		campaigns(t, b, c, "a")
		asked := time.Now()
		shutdown(errShutdown)
		if err := <-ran; !errors.Is(err, errShutdown) {
			t.Errorf("Run: %v", err)
		}
		if err := <-resigned; err != nil && time.Since(asked) < resignTimeout {
			t.Errorf("b's resignation: %v", err)
		}
		if third := a.says("gained")[0]; third <= second {
			t.Errorf("terms %d, %d, %d", first, second, third)
		}
	})
}

// Leaders shut down one after the other, and the next in the queue leads by the push of the
// resignation. No lease reaches its end in the meantime, and not every grant may be found by a
// timer (one may be faster than the push). No candidate leads while the context of an earlier
// leader is alive.
func TestHandOver(t *testing.T) {
	t.Parallel()
	sideBySide(t, sharedStores(), func(t *testing.T, name string, start func(t *testing.T) string) { //nolint:thelper // it is the test
		slowStore(t, name)
		url := start(t)
		const candidates = 4
		s := &stage{t: t, ended: map[fence.Token]time.Time{}}
		es := make([]*elector.Elector, candidates)
		var stops [candidates]context.CancelCauseFunc
		var wg sync.WaitGroup
		defer func() { // before the clients are closed
			for _, stop := range stops {
				if stop != nil {
					stop(errShutdown)
				}
			}
			wg.Wait()
		}()
		leads := make(chan int, 1)
		var timers atomic.Int32
		var pushed bool
		for i := range candidates {
			id := string(rune('a' + i))
			var lined bool
			c := electionClient(t, url, holdfast.Config{TTL: electionTTL, Owner: id, Hooks: &holdfast.Hooks{
				Acquired: func(_ context.Context, e holdfast.AcquiredEvent) {
					if i > 0 && lined && !e.InQueue {
						t.Errorf("%s leads: %+v", id, e)
					}
					if e.ByTimer {
						timers.Add(1)
					}
				},
			}})
			lined, pushed = c.Capabilities().FIFO, c.Capabilities().Push
			es[i] = candidate(t, c, elector.Config{Candidate: id, Hooks: elector.Hooks{
				Gained:   func(context.Context, *elector.Term) { leads <- i },
				Resigned: func(_ context.Context, term *elector.Term, err error) { s.resigned(id, term, err) },
				Lost:     func(_ context.Context, _ *elector.Term, err error) { t.Errorf("%s lost: %v", id, err) },
			}})
			ctx, stop := context.WithCancelCause(t.Context())
			stops[i] = stop
			wg.Go(func() {
				if err := es[i].Run(ctx, s.lead); !errors.Is(err, errShutdown) {
					t.Errorf("%s: Run: %v", id, err)
				}
			})
			if i == 0 {
				follow(t, leads, 0)
			} else {
				campaigns(t, es[0], c, id)
			}
			if !c.Capabilities().FIFO && i == 1 {
				// No queue: any of several waiters may be the next. And the backend does not
				// report that one waits; whether it waits or comes later, it leads.
				stops[0](errShutdown)
				follow(t, leads, 1)
				stops[1](errShutdown)
				return
			}
		}
		for i := range candidates - 1 {
			stops[i](errShutdown)
			follow(t, leads, i+1)
		}
		stops[candidates-1](errShutdown)
		wg.Wait()
		if _, err := es[0].Leader(t.Context()); !errors.Is(err, elector.ErrNoLeader) {
			t.Errorf("after the last one: %v", err)
		}
		if !slices.IsSorted(s.tokens) || s.terms() != candidates {
			t.Errorf("terms %v", s.tokens)
		}
		if pushed && timers.Load() == candidates-1 {
			t.Error("a timer found every grant")
		}
	})
}

// follow waits for the next leader, which must be the given one.
func follow(t *testing.T, leads <-chan int, want int) {
	t.Helper()
	select {
	case got := <-leads:
		if got != want {
			t.Fatalf("%d leads, want %d", got, want)
		}
	case <-time.After(electionPatience):
		t.Fatalf("%d does not lead", want)
	}
}
