package fence_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast"
	"github.com/holdfast-io/holdfast/backend/memlock"
	"github.com/holdfast-io/holdfast/fence"
)

func TestGuard(t *testing.T) {
	t.Parallel()
	g := fence.NewGuard()
	for _, step := range []struct {
		resource string
		token    fence.Token
		newest   fence.Token // refused because of it
	}{
		{"a", 5, 0},
		{"a", 5, 0}, // the same holder again
		{"a", 4, 5},
		{"b", 1, 0}, // another resource
		{"a", fence.MaxToken, 0},
		{"a", 6, fence.MaxToken},
	} {
		err := g.Check(step.resource, step.token)
		var stale *fence.StaleError
		switch {
		case step.newest == 0 && err != nil:
			t.Errorf("%s %d: %v", step.resource, step.token, err)
		case step.newest > 0 && (!errors.As(err, &stale) || !errors.Is(err, fence.ErrStale) || stale.Newest != step.newest || stale.Token != step.token):
			t.Errorf("%s %d: %v; want stale behind %d", step.resource, step.token, err, step.newest)
		}
	}
}

// TestEpochs: a resource that moves to another lock store begins again, and the old store is
// refused.
func TestEpochs(t *testing.T) {
	t.Parallel()
	old := fence.NewGuard()
	now := old.Epoch(1)
	if err := old.Check("a", 1_000_000); err != nil {
		t.Fatal(err)
	}
	if err := now.Check("a", 3); err != nil {
		t.Fatalf("the first token of a greater epoch: %v", err)
	}
	err := old.Check("a", 2_000_000)
	var epoch *fence.EpochError
	if !errors.As(err, &epoch) || errors.Is(err, fence.ErrStale) || epoch.Want != (fence.Stamp{Epoch: 1, Token: 3}) {
		t.Errorf("a token of the epoch before: %v", err)
	}
	if err := now.Check("a", 2); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a token that went back within the epoch: %v", err)
	}
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	g := fence.NewGuard()
	for field, err := range map[string]error{
		"token":    g.Check("a", 0),
		"resource": g.Check("", 1),
	} {
		var bad *fence.InvalidError
		if !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%v; want an *InvalidError of %s", err, field)
		}
	}
	if err := g.Check(strings.Repeat("x", fence.MaxResourceLen+1), 1); err == nil {
		t.Error("a resource of 513 bytes was taken")
	}
	if err := g.Check("a", fence.MaxToken+1); err == nil {
		t.Error("a token of 2^63 was taken")
	}
	if err := g.Check("a", 1); err != nil {
		t.Errorf("what was invalid was remembered: %v", err)
	}
}

// TestGuardIsAtomic: while one write runs, no other token of the resource is admitted, and those of
// other resources are.
func TestGuardIsAtomic(t *testing.T) {
	t.Parallel()
	g := fence.NewGuard()
	var wg sync.WaitGroup
	newest, written := fence.Token(0), 0 // guarded by g alone, as the race detector confirms
	for i := range fence.Token(200) {
		wg.Go(func() {
			err := g.Do("a", i+1, func() error {
				if i+1 < newest {
					t.Errorf("token %d writes after %d", i+1, newest)
				}
				newest = i + 1
				written++
				return g.Check("b", 1)
			})
			if err != nil && !errors.Is(err, fence.ErrStale) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if written == 0 || newest != 200 {
		t.Errorf("%d writes, the last with token %d", written, newest)
	}
}

// TestLateWriter is the case that tokens are for: a holder sleeps past its lease, the next one
// writes, and then the first wakes and writes what it had decided.
func TestLateWriter(t *testing.T) {
	t.Parallel()
	for name, guarded := range map[string]bool{"with the guard": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, stock := fence.NewGuard(), 10
			write := func(token fence.Token, n int) error {
				if !guarded {
					stock = n
					return nil
				}
				return g.Do("stock", token, func() error { stock = n; return nil })
			}
			store := memlock.NewStore()
			first := take(t, store)
			had := stock // and now it sleeps
			<-first.Context().Done()
			second := take(t, store)
			if err := write(second.Token(), stock-3); err != nil {
				t.Fatal(err)
			}
			err := write(first.Token(), had-1) // it wakes
			if guarded {
				if !errors.Is(err, fence.ErrStale) || stock != 7 {
					t.Errorf("the late write: %v; the stock is %d, and has to be 7", err, stock)
				}
			} else if stock != 9 {
				t.Errorf("the stock is %d: without the guard the late write is there, and the other is lost", stock)
			}
		})
	}
}

// take acquires and releases the lock, as another process would.
func take(t *testing.T, store *memlock.Store) *holdfast.Lock {
	t.Helper()
	b := store.Open()
	locks, err := holdfast.New(b, holdfast.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(locks.Close(t.Context()), b.Close()) })
	lock, err := locks.Acquire(t.Context(), "stock", holdfast.NoRenew(), holdfast.TTL(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"1", "0", "", "9223372036854775807", "9223372036854775808", "+1", "-1", "01", " 1", "1 ", "0x1", "1_0", "١"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		token, err := fence.Parse(s)
		var bad *fence.InvalidError
		if err == nil && (!token.Valid() || token.String() != s) {
			t.Errorf("Parse(%q) = %d", s, token)
		}
		if err != nil && (token != 0 || !errors.As(err, &bad)) {
			t.Errorf("Parse(%q) = %d, %v", s, token, err)
		}
	})
}
