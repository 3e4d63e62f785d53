package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/backend/redislock/redisfence"
	"github.com/holdfast-io/holdfast/fence"
	"github.com/holdfast-io/holdfast/internal/testkit/leaktest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func connect(t *testing.T) (rueidis.Client, *redisfence.Guard) {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{testserver.Redis(t).Addr()}, ForceSingleClient: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, redisfence.New(redisfence.Rueidis(c))
}

func get(t *testing.T, c rueidis.Client, key string) string {
	t.Helper()
	v, err := c.Do(t.Context(), c.B().Get().Key(key).Build()).ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		t.Fatal(err)
	}
	return v
}

// TestLateWriter: a write with a smaller token is refused, and the data is intact; the same write
// without the guard loses it.
func TestLateWriter(t *testing.T) {
	t.Parallel()
	c, g := connect(t)
	ctx := t.Context()
	if err := g.Set(ctx, "stock", "7", 34); err != nil {
		t.Fatal(err)
	}
	err := g.Set(ctx, "stock", "9", 33)
	var stale *fence.StaleError
	if !errors.As(err, &stale) || stale.Newest != 34 || stale.Token != 33 || get(t, c, "stock") != "7" {
		t.Errorf("the late write: %v, stock %s", err, get(t, c, "stock"))
	}
	for _, token := range []fence.Token{34, 35, 9_007_199_254_740_993, fence.MaxToken - 1, fence.MaxToken} {
		if err := g.Set(ctx, "stock", token.String(), token); err != nil || get(t, c, "stock") != token.String() {
			t.Errorf("token %d: %v, stock %s", token, err, get(t, c, "stock"))
		}
	}
	// Lua numbers could not tell these two apart.
	if err := g.Set(ctx, "stock", "0", fence.MaxToken-1); !errors.Is(err, fence.ErrStale) {
		t.Errorf("one below the greatest: %v", err)
	}
	for _, n := range []string{"7", "9"} { // without the guard: the second holder, then the first, which woke up
		if err := c.Do(ctx, c.B().Set().Key("plain").Value(n).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	if get(t, c, "plain") != "9" {
		t.Error("without the guard the late write was to be there")
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	c, g := connect(t)
	ctx := t.Context()
	const move = `redis.call('DECRBY', KEYS[1], ARGV[1]) return redis.call('INCRBY', KEYS[2], ARGV[1])`
	v, err := g.Run(ctx, "{acc}:a", 5, move, []string{"{acc}:b"}, []string{"3"})
	if err != nil || v != int64(3) || get(t, c, "{acc}:a") != "-3" {
		t.Errorf("Run = %v, %v", v, err)
	}
	if _, err := g.Run(ctx, "{acc}:a", 4, move, []string{"{acc}:b"}, []string{"3"}); !errors.Is(err, fence.ErrStale) || get(t, c, "{acc}:b") != "3" {
		t.Errorf("the late one: %v", err)
	}
	if v, err := g.Run(ctx, "{acc}:a", 5, "return redis.call('GET', 'nothing' .. KEYS[1])", nil, nil); err != nil || v != nil {
		t.Errorf("nil: %v, %v", v, err)
	}
	if _, err := g.Run(ctx, "{acc}:a", 6, "return redis.call('INCR')", nil, nil); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("a script that fails: %v", err)
	}
	if err := g.Set(ctx, "{acc}:a", "1", 5); !errors.Is(err, fence.ErrStale) {
		t.Errorf("after a script that failed its token counts: %v", err)
	}
	var bad *fence.InvalidError
	if err := g.Set(ctx, "", "1", 5); !errors.As(err, &bad) {
		t.Errorf("no key: %v", err)
	}
	if err := g.Set(ctx, "x", "1", 0); !errors.As(err, &bad) || get(t, c, "x") != "" {
		t.Errorf("no token: %v", err)
	}
}

// An error of the script, which may have written something, is not taken for the refusal of the
// token, whatever its text is.
func TestScriptFailsLikeARefusal(t *testing.T) {
	t.Parallel()
	c, g := connect(t)
	const token = 7
	for _, text := range []string{
		"X HFSTALE y", "HFSTALE y", "HFSTALE 5", "HFSTALE", "HFSTALE 0000000000.0000000000000000005", "HFSTALE 0000000000.0000000000000000007",
		"HFSTALE 0000000000.0000000000000000009 keys", "X HFSTALE 0000000000.0000000000000000009", "HFSTALE 0.9",
	} {
		const script = `redis.call('SET', KEYS[1], ARGV[1]) return redis.error_reply(ARGV[1])`
		_, err := g.Run(t.Context(), "k", token, script, nil, []string{text})
		if err == nil || errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrEpoch) || !strings.Contains(err.Error(), text) {
			t.Errorf("a script that fails with %q: %v", text, err)
		}
		if get(t, c, "k") != text {
			t.Errorf("the script that fails with %q has not written", text)
		}
	}
	if _, err := g.Run(t.Context(), "k", token-1, "return redis.call('DEL', KEYS[1])", nil, nil); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a token that is stale: %v", err)
	}
}

// TestWrappedRefusal: an Eval may add to the server's error.
func TestWrappedRefusal(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"HFSTALE 0000000000.0000000000000000034", "ERR HFSTALE 0000000000.0000000000000000034"} {
		g := redisfence.New(func(context.Context, string, []string, []string) (any, error) {
			return nil, fmt.Errorf("eval: %w", errors.New(text))
		})
		var stale *fence.StaleError
		if err := g.Set(t.Context(), "k", "v", 33); !errors.As(err, &stale) || stale.Newest != 34 {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestEpochs(t *testing.T) {
	t.Parallel()
	c, old := connect(t)
	ctx := t.Context()
	now := old.Epoch(1)
	if err := errors.Join(old.Set(ctx, "k", "1", 1000), now.Set(ctx, "k", "2", 2)); err != nil {
		t.Fatal(err)
	}
	err := old.Set(ctx, "k", "3", 2000)
	var epoch *fence.EpochError
	if !errors.As(err, &epoch) || errors.Is(err, fence.ErrStale) || epoch.Want != (fence.Stamp{Epoch: 1, Token: 2}) {
		t.Errorf("a token of the epoch before: %v", err)
	}
	for _, s := range []fence.Stamp{{Token: 5}, {Epoch: 2, Token: 5}} { // a presented epoch is never trusted
		if _, err := now.RunStamp(ctx, "k", s, "return redis.call('DEL', KEYS[1])", nil, nil); !errors.Is(err, fence.ErrEpoch) {
			t.Errorf("the stamp %v at a guard of epoch 1: %v", s, err)
		}
	}
	if v := get(t, c, "k"); v != "2" {
		t.Errorf("what was refused has written %q", v)
	}
	if _, err := now.RunStamp(ctx, "k", fence.Stamp{Epoch: 1, Token: 3}, "return redis.call('SET', KEYS[1], 5)", nil, nil); err != nil {
		t.Error(err)
	}
	const redis, etcd = 1_790_000_000_000_000, 4711
	if err := old.Set(ctx, "moved", "1", redis); err != nil {
		t.Fatal(err)
	}
	if err := old.Set(ctx, "moved", "2", etcd); !errors.Is(err, fence.ErrEpoch) {
		t.Errorf("locks that moved without an epoch: %v", err)
	}
	if err := now.Set(ctx, "k", "4", 1); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a token that went back: %v", err)
	}
}

// TestManyAtOnce: the value at the end belongs to the greatest token.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	c, g := connect(t)
	const writers = 100
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			token := fence.Token((i*37)%writers + 1)
			if err := g.Set(t.Context(), "k", token.String(), token); err != nil && !errors.Is(err, fence.ErrStale) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := get(t, c, "k"); got != "100" {
		t.Errorf("the last write is of token %s", got)
	}
}

// TestFenceKey: the fence key is in the slot of the key, on a Cluster.
func TestFenceKey(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"a": "holdfast:fence:{a}", "{a}": "holdfast:fence::{a}", "{t}a": "holdfast:fence::{t}a", "a{t}": "holdfast:fence::a{t}", "a{": "holdfast:fence:{a{}",
	} {
		if got := redisfence.FenceKey(key); got != want || tag(got) != tag(key) {
			t.Errorf("FenceKey(%q) = %q, in the slot of %q; want %q, in that of %q", key, got, tag(got), want, tag(key))
		}
	}
}

// tag returns the part of a key that determines its slot.
func tag(key string) string {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if in, _, ok := strings.Cut(rest, "}"); ok && in != "" {
			return in
		}
	}
	return key
}

func ExampleEval() {
	// With go-redis: rdb.Eval(ctx, script, keys, args).Result()
	var eval redisfence.Eval = func(context.Context, string, []string, []string) (any, error) {
		return nil, errors.New("HFSTALE 0000000000.0000000000000000034")
	}
	err := redisfence.New(eval).Set(context.Background(), "stock", "9", 33)
	fmt.Println(err)
	// Output: the fencing token is stale: token 33 of "stock", and 34 was seen before
}
