package fence_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/fence"
)

func FuzzParseStamp(f *testing.F) {
	for _, s := range []string{"1", "1:1", "0:1", ":1", "1:", "01:1", "+1:1", "1:01", "4294967295:9223372036854775807", "4294967296:1", "1:2:3", " 1:1", "١:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := fence.ParseStamp(text)
		var bad *fence.InvalidError
		if err == nil && (!s.Token.Valid() || s.String() != text) {
			t.Errorf("ParseStamp(%q) = %v", text, s)
		}
		if err != nil && (s != fence.Stamp{} || !errors.As(err, &bad)) {
			t.Errorf("ParseStamp(%q) = %v, %v", text, s, err)
		}
	})
}

// TestStampOrder: the epoch decides, and the token within it.
func TestStampOrder(t *testing.T) {
	t.Parallel()
	want := []fence.Stamp{{0, 1}, {0, fence.MaxToken}, {1, 1}, {1, 2}, {9, 1}, {10, 1}}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, fence.Stamp.Compare)
	if !slices.Equal(got, want) {
		t.Errorf("sorted: %v, want %v", got, want)
	}
}

// TestAnotherStore: an error that no retry cures is ErrEpoch and not ErrStale, and the reverse.
func TestAnotherStore(t *testing.T) {
	t.Parallel()
	const redis = 1_790_000_000_000_000
	for name, tc := range map[string]struct {
		given, newest fence.Stamp
		want          error
	}{
		"merely stale":                     {fence.Stamp{0, 4}, fence.Stamp{0, 5}, fence.ErrStale},
		"stale by a year of Redis":         {fence.Stamp{0, redis - 31_536_000_000_000}, fence.Stamp{0, redis}, fence.ErrStale},
		"stale by a million revisions":     {fence.Stamp{0, 5}, fence.Stamp{0, 1_000_005}, fence.ErrStale},
		"an etcd's after a Redis'":         {fence.Stamp{0, 1_000_005}, fence.Stamp{0, redis}, fence.ErrEpoch},
		"the same in a later epoch":        {fence.Stamp{3, 1_000_005}, fence.Stamp{3, redis}, fence.ErrEpoch},
		"the epoch before, greater token":  {fence.Stamp{0, redis}, fence.Stamp{1, 7}, fence.ErrEpoch},
		"stale within an epoch":            {fence.Stamp{1, 6}, fence.Stamp{1, 7}, fence.ErrStale},
		"nothing that is a clock's, close": {fence.Stamp{0, 1}, fence.Stamp{0, 999_999_999_999_999}, fence.ErrStale},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := fence.Refusal("stock", tc.given, tc.newest)
			other := map[error]error{fence.ErrStale: fence.ErrEpoch, fence.ErrEpoch: fence.ErrStale}[tc.want]
			if !errors.Is(err, tc.want) || errors.Is(err, other) {
				t.Errorf("%v; want %v", err, tc.want)
			}
		})
	}
}

// TestMovedWithoutAnEpoch: the locks of a guarded resource move from Redis to etcd, and the epoch
// was not raised. All writes are refused, with the error that says so. Raising the epoch cures it,
// and the earlier tokens are refused.
func TestMovedWithoutAnEpoch(t *testing.T) {
	t.Parallel()
	const redis, etcd = 1_790_000_000_000_000, 4711
	g := fence.NewGuard()
	if err := g.Check("stock", redis); err != nil {
		t.Fatal(err)
	}
	err := g.Check("stock", etcd)
	var epoch *fence.EpochError
	if !errors.As(err, &epoch) || epoch.Given != (fence.Stamp{0, etcd}) || epoch.Want != (fence.Stamp{0, redis}) {
		t.Fatalf("a token of etcd after one of Redis: %v", err)
	}
	now := g.Epoch(1)
	if err := now.Check("stock", etcd); err != nil {
		t.Errorf("in the new epoch: %v", err)
	}
	if err := g.Check("stock", redis+1); !errors.Is(err, fence.ErrEpoch) {
		t.Errorf("a token of Redis after the move: %v", err)
	}
}

// TestStampOfAnotherEpoch: a presented epoch is compared and never trusted.
func TestStampOfAnotherEpoch(t *testing.T) {
	t.Parallel()
	g := fence.NewGuard().Epoch(2)
	for _, s := range []fence.Stamp{{0, 5}, {1, 5}, {3, 5}, {4294967295, 5}} {
		ran := false
		err := g.DoStamp("a", s, func() error { ran = true; return nil })
		var epoch *fence.EpochError
		if !errors.As(err, &epoch) || epoch.Given != s || epoch.Want.Epoch != 2 || ran {
			t.Errorf("%v: %v, ran: %t", s, err, ran)
		}
	}
	if err := g.DoStamp("a", fence.Stamp{2, 1}, func() error { return nil }); err != nil {
		t.Errorf("after stamps that were refused: %v", err)
	}
}

// TestFull: the guard accepts no more resources than it may, forgets none by itself, and still
// works for those that it knows.
func TestFull(t *testing.T) {
	t.Parallel()
	g, err := fence.New(fence.Config{MaxResources: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.Check("a", 5), g.Check("b", 5)); err != nil {
		t.Fatal(err)
	}
	ran := false
	err = g.Do("c", 5, func() error { ran = true; return nil })
	var full *fence.FullError
	if !errors.As(err, &full) || !errors.Is(err, fence.ErrFull) || full.Max != 2 || full.Resource != "c" || ran {
		t.Fatalf("a third resource: %v, ran: %t", err, ran)
	}
	if err := errors.Join(g.Check("a", 6), g.Epoch(1).Check("b", 1)); err != nil {
		t.Errorf("those that are known: %v", err)
	}
	if err := g.Check("a", 5); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a stale token of a full guard: %v", err)
	}
	g.Forget("nothing")
	g.Forget("a")
	if err := g.Check("c", 5); err != nil {
		t.Errorf("after Forget: %v", err)
	}
	if err := g.Check("a", 7); !errors.Is(err, fence.ErrFull) {
		t.Errorf("one more than there is room for: %v", err)
	}
}

// TestRefusedTakesNoRoom: a refused stamp leaves nothing in the guard, and Forget waits for the
// write in progress.
func TestRefusedTakesNoRoom(t *testing.T) {
	t.Parallel()
	g, err := fence.New(fence.Config{MaxResources: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.DoStamp("a", fence.Stamp{7, 1}, nil); !errors.Is(err, fence.ErrEpoch) {
		t.Fatal(err)
	}
	forgotten := make(chan struct{})
	err = g.Do("b", 3, func() error {
		go func() { g.Forget("b"); close(forgotten) }()
		select {
		case <-forgotten:
			return errors.New("Forget did not wait for the write")
		case <-time.After(20 * time.Millisecond):
			return nil
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	<-forgotten
	if err := g.Check("a", 1); err != nil {
		t.Errorf("the guard is not empty: %v", err)
	}
}

// TestJump: a token that jumps too far is refused and not remembered.
func TestJump(t *testing.T) {
	t.Parallel()
	g, err := fence.New(fence.Config{MaxJump: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		g     *fence.Guard
		token fence.Token
		ok    bool
	}{
		{g, 1_000_000, true}, // the first has nothing to compare with
		{g, 1_000_101, false},
		{g, fence.MaxToken, false},
		{g, 1_000_100, true},
		{g, 1_000_200, true},
		{g.Epoch(1), 7_000_000, true}, // another store
		{g.Epoch(1), 7_000_101, false},
	} {
		err := step.g.Check("a", step.token)
		var jump *fence.JumpError
		if step.ok != (err == nil) || err != nil && (!errors.As(err, &jump) || !errors.Is(err, fence.ErrJump)) {
			t.Errorf("%d: %v, want it accepted: %t", step.token, err, step.ok)
		}
	}
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	for _, cfg := range []fence.Config{{MaxResources: -1}, {MaxJump: fence.MaxToken + 1}} {
		var bad *fence.InvalidError
		if _, err := fence.New(cfg); !errors.As(err, &bad) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// TestCeiling: the ceiling is above every token of a clock that is less than a day ahead.
func TestCeiling(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_790_000_000, 0)
	if got, want := fence.Ceiling(now), fence.Token(1_790_086_400_000_000); got != want {
		t.Errorf("%d, want %d", got, want)
	}
	if got := fence.Ceiling(time.Time{}); got != 0 {
		t.Errorf("a clock before 1970: %d", got)
	}
}

func ExampleParseStamp() {
	s, err := fence.ParseStamp("2:4711") // token 4711 of the store that the locks have moved to
	fmt.Println(s.Epoch, s.Token, err)
	err = fence.NewGuard().Epoch(3).DoStamp("stock", s, func() error { return nil })
	fmt.Println(err)
	// Output:
	// 2 4711 <nil>
	// the fencing token is of another lock store or epoch: token 4711 of "stock" is of epoch 2, and epoch 3 is in force: move this client to the lock store of that epoch
}
