package bench_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/bench"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestPercentile(t *testing.T) {
	t.Parallel()
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = 100 - i // it sorts
	}
	for _, c := range []struct {
		samples []int
		p       float64
		want    int
	}{
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
		{hundred, 0, 1},
		{[]int{7}, 0.99, 7},
		{[]int{3, 1}, 0.5, 1},
		{[]int{3, 1}, 0.51, 3},
		{nil, 0.5, 0},
	} {
		if got := bench.Percentile(slices.Clone(c.samples), c.p); got != c.want {
			t.Errorf("p%g of %d samples: %d, want %d", 100*c.p, len(c.samples), got, c.want)
		}
	}
}

func TestEvenPercentile(t *testing.T) {
	t.Parallel()
	greedy := make([]time.Duration, 1000)
	starved := []time.Duration{time.Second}
	// One of four is served immediately, every time; the others wait.
	each := [][]time.Duration{greedy, starved, starved, starved, nil}
	for p, want := range map[float64]time.Duration{0.25: 0, 0.26: time.Second, 0.5: time.Second, 0.99: time.Second} {
		if got := bench.EvenPercentile(each, p); got != want {
			t.Errorf("p%g: %s, want %s", 100*p, got, want)
		}
	}
	even := [][]time.Duration{{1, 2}, {3, 4}}
	if got := bench.EvenPercentile(even, 0.5); got != 2 {
		t.Errorf("of even ones: %d", got)
	}
	if got := bench.EvenPercentile(nil, 0.5); got != 0 {
		t.Errorf("of none: %d", got)
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	values := []float64{9, 1, 5}
	if got := bench.Median(values); got != 5 {
		t.Errorf("of three: %g", got)
	}
	if !slices.Equal(values, []float64{9, 1, 5}) {
		t.Errorf("the values were sorted: %v", values)
	}
	if got := bench.Median([]float64{4, 1, 2, 100}); got != 3 {
		t.Errorf("of four: %g", got)
	}
	if got := bench.Median(nil); got != 0 {
		t.Errorf("of none: %g", got)
	}
}

func TestJain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		shares []float64
		want   float64
	}{
		{[]float64{5, 5, 5, 5}, 1},
		{[]float64{8, 0, 0, 0}, 0.25},
		{[]float64{3, 1}, 0.8},
		{[]float64{0, 0}, 0},
		{nil, 0},
	} {
		if got := bench.Jain(c.shares); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%v: %g, want %g", c.shares, got, c.want)
		}
	}
}

func TestReferee(t *testing.T) {
	t.Parallel()
	var r bench.Referee
	r.Enter(4)
	r.Leave()
	r.Enter(5)
	if r.Doubles() != 0 || r.TokenFaults() != 0 {
		t.Fatalf("one after the other: %d double holds, %d token faults", r.Doubles(), r.TokenFaults())
	}
	r.Enter(6)
	if r.Doubles() != 1 {
		t.Errorf("two concurrent holders: %d double holds", r.Doubles())
	}
	r.Leave()
	r.Leave()
	r.Enter(6)
	if r.TokenFaults() != 1 {
		t.Errorf("the same token again: %d token faults", r.TokenFaults())
	}
}

// locker is a contender of this test.
type locker func(ctx context.Context, name string) (bench.Held, error)

func (l locker) Lock(ctx context.Context, name string) (bench.Held, error) { return l(ctx, name) }
func (l locker) Close(context.Context) error                               { return nil }

func engine(contenders ...bench.Contender) *bench.Engine {
	return &bench.Engine{Name: "test", URL: "test://", Contenders: contenders}
}

func contender(name string, lock locker) bench.Contender {
	return bench.Contender{Name: name, Ours: true, Can: bench.CanWait, Open: func(context.Context, bench.Config) (bench.Locker, error) {
		return lock, nil
	}}
}

func free(context.Context) error { return nil }

// mutex is a lock for all names, with a token that is made under it.
func mutex(token func() uint64) locker {
	var mu sync.Mutex
	return func(context.Context, string) (bench.Held, error) {
		mu.Lock()
		return bench.Held{Token: token(), Unlock: func(context.Context) error { mu.Unlock(); return nil }}, nil
	}
}

// A contender that grants the lock to every caller is detected, and so is one that issues the same
// token twice.
func TestDoubleHoldIsSeen(t *testing.T) {
	t.Parallel()
	everybody := contender("everybody", func(context.Context, string) (bench.Held, error) {
		return bench.Held{Unlock: free}, nil
	})
	sameToken := contender("same token", mutex(func() uint64 { return 1 }))
	token := uint64(0)
	good := contender("good", mutex(func() uint64 { token++; return token }))
	var r *bench.Report
	for budget := 20 * time.Millisecond; ; budget *= 2 { // on a busy machine only one worker may come to its turn
		var err error
		r, err = bench.Run(t.Context(), []*bench.Engine{engine(everybody, sameToken, good)},
			bench.Options{Rounds: 1, Budget: budget, Only: []string{"one/8/1ms"}})
		if err != nil {
			t.Fatal(err)
		}
		of := func(name string) bench.Figures {
			if x := r.Find("test", "one/8/1ms", name); x != nil {
				return x.Figures
			}
			return nil
		}
		if budget > 3*time.Second || of("everybody")[bench.DoubleHolds] > 0 && of("same token")[bench.Grants] > 1 && of("good")[bench.Grants] > 1 {
			break
		}
	}
	find := func(name string) bench.Figures {
		x := r.Find("test", "one/8/1ms", name)
		if x == nil || x.Failed != "" || x.Figures[bench.Grants] < 2 {
			t.Fatalf("%s: %+v", name, x)
		}
		return x.Figures
	}
	if f := find("everybody"); f[bench.DoubleHolds] == 0 {
		t.Errorf("all workers held the lock concurrently, and no double hold was counted: %v", f)
	}
	if f := find("same token"); f[bench.TokenFaults] == 0 || f[bench.DoubleHolds] != 0 {
		t.Errorf("all had the same token: %v", f)
	}
	if f := find("good"); f[bench.TokenFaults]+f[bench.DoubleHolds] != 0 {
		t.Errorf("a mutex: %v", f)
	}
	if r.Verdict() == nil {
		t.Error("the report says that there was none")
	}
}

// A contender that fails drops out of its scenario, with its reason; the other continues.
func TestFailureIsTold(t *testing.T) {
	t.Parallel()
	bad := contender("bad", func(context.Context, string) (bench.Held, error) {
		return bench.Held{}, errors.New("no ink")
	})
	good := contender("good", func(context.Context, string) (bench.Held, error) { return bench.Held{Unlock: free}, nil })
	r, err := bench.Run(t.Context(), []*bench.Engine{engine(bad, good)},
		bench.Options{Rounds: 2, Budget: 5 * time.Millisecond, Only: []string{"own/1"}})
	if err != nil {
		t.Fatal(err)
	}
	if x := r.Find("test", "own/1", "bad"); !strings.Contains(x.Failed, "no ink") {
		t.Errorf("bad: %+v", x)
	}
	if x := r.Find("test", "own/1", "good"); x.Failed != "" || len(x.Rounds) != 2 || x.Figures[bench.PairsPerSecond] <= 0 {
		t.Errorf("good: %+v", x)
	}
	var text strings.Builder
	if err := bench.Table(&text, r); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "bad FAILED") || !strings.Contains(text.String(), "no ink") {
		t.Errorf("the table does not tell it:\n%s", text.String())
	}
}

// A goroutine that never got the lock counts with the time that it waited.
func TestStarvingCounts(t *testing.T) {
	t.Parallel()
	var granted atomic.Bool
	greedy := contender("greedy", func(ctx context.Context, name string) (bench.Held, error) {
		if strings.Contains(name, "warm") || granted.CompareAndSwap(false, true) {
			return bench.Held{Unlock: free}, nil
		}
		<-ctx.Done()
		return bench.Held{}, context.Cause(ctx)
	})
	r, err := bench.Run(t.Context(), []*bench.Engine{engine(greedy)},
		bench.Options{Rounds: 1, Budget: 50 * time.Millisecond, Only: []string{"one/8"}})
	if err != nil {
		t.Fatal(err)
	}
	x := r.Find("test", "one/8", "greedy")
	if x.Failed != "" || x.Figures[bench.Grants] != 1 || x.Figures[bench.WaitMax] < 0.05 || x.Figures[bench.WaitP50] < 0.05 {
		t.Errorf("the longest wait is %g s of 0.05: %+v", x.Figures[bench.WaitMax], x)
	}
}

// The contenders run in turn, and each round begins with another one.
func TestTurnAbout(t *testing.T) {
	t.Parallel()
	var order []string
	turn := func(name string) bench.Contender {
		c := contender(name, nil)
		c.Open = func(context.Context, bench.Config) (bench.Locker, error) {
			order = append(order, name)
			return locker(func(context.Context, string) (bench.Held, error) { return bench.Held{Unlock: free}, nil }), nil
		}
		return c
	}
	_, err := bench.Run(t.Context(), []*bench.Engine{engine(turn("a"), turn("b"))}, bench.Options{Rounds: 2, Budget: time.Millisecond, Only: []string{"own/1"}})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(order, []string{"a", "b", "b", "a"}) {
		t.Errorf("%v", order)
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []bench.Options{{Rounds: -1}, {Rounds: 1001}, {Budget: -1}, {Budget: 2 * time.Hour}, {Only: []string{"["}}, {Contenders: []string{"["}}} {
		if _, err := bench.Run(t.Context(), nil, o); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// The ratio is the median of the rounds' ratios, not the ratio of their medians.
func TestRatio(t *testing.T) {
	t.Parallel()
	of := func(values ...float64) *bench.Result {
		r := &bench.Result{}
		for _, v := range values {
			r.Rounds = append(r.Rounds, bench.Figures{bench.PairsPerSecond: v})
		}
		return r
	}
	if got, ok := bench.Ratio(of(10, 200, 30), of(5, 100, 10), bench.PairsPerSecond); !ok || got != 2 {
		t.Errorf("%g, %t", got, ok)
	}
	if _, ok := bench.Ratio(of(1), nil, bench.PairsPerSecond); ok {
		t.Error("a ratio to nothing")
	}
	if _, ok := bench.Ratio(of(1), of(0), bench.PairsPerSecond); ok {
		t.Error("a ratio to 0")
	}
}

// With some contenders a lock lives as long as the context that it was acquired with. It must live
// while the cost of holding it is measured.
func TestHoldingKeepsTheContext(t *testing.T) {
	t.Parallel()
	var ended atomic.Int64
	bound := contender("bound", func(ctx context.Context, _ string) (bench.Held, error) {
		return bench.Held{Unlock: func(context.Context) error {
			if ctx.Err() != nil {
				ended.Add(1)
			}
			return nil
		}}, nil
	})
	bound.Can |= bench.CanRenew
	e := engine(bound)
	e.Meter = func(context.Context) (func() (int64, error), error) {
		return func() (int64, error) { return 0, nil }, nil
	}
	r, err := bench.Run(t.Context(), []*bench.Engine{e}, bench.Options{Rounds: 1, Budget: time.Millisecond, Only: []string{"renew/100"}})
	if err != nil {
		t.Fatal(err)
	}
	if x := r.Find("test", "renew/100", "bound"); x.Failed != "" || x.Figures[bench.Grants] != 100 {
		t.Errorf("%+v", x)
	}
	if n := ended.Load(); n != 0 {
		t.Errorf("%d locks had ended before they were released", n)
	}
}
