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

// is fails unless the error of a call is the one that is wanted, and the key has that value.
func is(t *testing.T, c rueidis.Client, what string, err, want error, key, value string) {
	t.Helper()
	if v := get(t, c, key); !errors.Is(err, want) || v != value {
		t.Errorf("%s: %v, and %q is %q; want %v, and %q", what, err, key, v, want, value)
	}
}

// A write with a smaller token is refused, and the data is intact.
func TestLateWriter(t *testing.T) {
	t.Parallel()
	c, g := connect(t)
	ctx := t.Context()
	is(t, c, "the first write", g.Set(ctx, "stock", "7", 34), nil, "stock", "7")
	err := g.Set(ctx, "stock", "9", 33)
	is(t, c, "the late write", err, fence.ErrStale, "stock", "7")
	if stale, ok := errors.AsType[*fence.StaleError](err); !ok || stale.Newest != 34 || stale.Token != 33 {
		t.Errorf("the late write: %v", err)
	}
	for _, token := range []fence.Token{34, 35, 9_007_199_254_740_993, fence.MaxToken - 1, fence.MaxToken} {
		is(t, c, token.String(), g.Set(ctx, "stock", token.String(), token), nil, "stock", token.String())
	}
	// Lua numbers could not tell these two apart.
	is(t, c, "one below the greatest", g.Set(ctx, "stock", "0", fence.MaxToken-1), fence.ErrStale, "stock", fence.MaxToken.String())
}

func TestRun(t *testing.T) {
	t.Parallel()
	c, g := connect(t)
	ctx := t.Context()
	const move = `redis.call('DECRBY', KEYS[1], ARGV[1]) return redis.call('INCRBY', KEYS[2], ARGV[1])`
	v, err := g.Run(ctx, "{acc}:a", 5, move, []string{"{acc}:b"}, []string{"3"})
	if is(t, c, "Run", err, nil, "{acc}:a", "-3"); v != int64(3) {
		t.Errorf("Run = %v", v)
	}
	_, err = g.Run(ctx, "{acc}:a", 4, move, []string{"{acc}:b"}, []string{"3"})
	is(t, c, "the late one", err, fence.ErrStale, "{acc}:b", "3")
	if v, err := g.Run(ctx, "{acc}:a", 5, "return redis.call('GET', 'nothing' .. KEYS[1])", nil, nil); err != nil || v != nil {
		t.Errorf("nil: %v, %v", v, err)
	}
	if _, err := g.Run(ctx, "{acc}:a", 6, "return redis.call('INCR')", nil, nil); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("a script that fails: %v", err)
	}
	is(t, c, "after a script that failed its token counts", g.Set(ctx, "{acc}:a", "1", 5), fence.ErrStale, "{acc}:a", "-3")
	for what, err := range map[string]error{"no key": g.Set(ctx, "", "1", 5), "no token": g.Set(ctx, "x", "1", 0)} {
		if bad, ok := errors.AsType[*fence.InvalidError](err); !ok || get(t, c, "x") != "" {
			t.Errorf("%s: %v, %v", what, bad, err)
		}
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
		if err == nil || errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrEpoch) || !strings.Contains(err.Error(), text) || get(t, c, "k") != text {
			t.Errorf("a script that fails with %q, and has written it: %v", text, err)
		}
	}
	_, err := g.Run(t.Context(), "k", token-1, "return redis.call('DEL', KEYS[1])", nil, nil)
	is(t, c, "a token that is stale", err, fence.ErrStale, "k", "HFSTALE 0.9")
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
	is(t, c, "the epochs in order", errors.Join(old.Set(ctx, "k", "1", 1000), now.Set(ctx, "k", "2", 2)), nil, "k", "2")
	err := old.Set(ctx, "k", "3", 2000)
	var epoch *fence.EpochError
	if !errors.As(err, &epoch) || errors.Is(err, fence.ErrStale) || epoch.Want != (fence.Stamp{Epoch: 1, Token: 2}) {
		t.Errorf("a token of the epoch before: %v", err)
	}
	for _, s := range []fence.Stamp{{Token: 5}, {Epoch: 2, Token: 5}} { // a presented epoch is never trusted
		_, err := now.RunStamp(ctx, "k", s, "return redis.call('DEL', KEYS[1])", nil, nil)
		is(t, c, fmt.Sprintf("the stamp %v at a guard of epoch 1", s), err, fence.ErrEpoch, "k", "2")
	}
	_, err = now.RunStamp(ctx, "k", fence.Stamp{Epoch: 1, Token: 3}, "return redis.call('SET', KEYS[1], 5)", nil, nil)
	is(t, c, "the right stamp", err, nil, "k", "5")
	const redis, etcd = 1_790_000_000_000_000, 4711
	is(t, c, "a token of Redis", old.Set(ctx, "moved", "1", redis), nil, "moved", "1")
	is(t, c, "locks that moved without an epoch", old.Set(ctx, "moved", "2", etcd), fence.ErrEpoch, "moved", "1")
	is(t, c, "a token that went back", now.Set(ctx, "k", "4", 1), fence.ErrStale, "k", "5")
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
