// Package redisfence refuses stale fencing tokens in the script that writes, on Redis.
//
//	guard := redisfence.New(redisfence.Rueidis(client))
//	err := guard.Set(ctx, "stock:7", "41", lock.Token())
//	// errors.Is(err, fence.ErrStale): the lock has been granted to another client since; nothing was written
//	// errors.Is(err, fence.ErrEpoch): the locks have moved to another store: see fence.Stamp
//
// The greatest token of a key is kept in another key beside it, in the same slot of a Cluster. It
// does not expire: it must outlive whatever a late write could harm.
package redisfence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-io/holdfast/fence"
)

// Eval runs a script. It returns the error of the server as it is, or wrapped. goredis.Eval, in
// backend/redislock/goredis, is one for clients of go-redis.
type Eval func(ctx context.Context, script string, keys, args []string) (any, error)

// Rueidis returns an Eval that runs scripts with a rueidis client, by their hashes. It returns nil if c is nil.
func Rueidis(c rueidis.Client) Eval {
	if c == nil {
		return nil
	}
	return func(ctx context.Context, script string, keys, args []string) (any, error) {
		v, err := rueidis.NewLuaScript(script).Exec(ctx, c, keys, args).ToAny()
		if rueidis.IsRedisNil(err) {
			return nil, nil
		}
		return v, err //nolint:wrapcheck // Guard does
	}
}

// Guard refuses stale tokens. Its methods are safe for concurrent use.
type Guard struct {
	eval  Eval
	epoch uint32
}

// New returns a guard. It sends nothing. If eval is nil, every call returns a *fence.InvalidError.
func New(eval Eval) *Guard { return &Guard{eval: eval} }

// Epoch returns the same guard for the tokens of another lock store: see fence.Guard.
func (g *Guard) Epoch(n uint32) *Guard { return &Guard{eval: g.eval, epoch: n} }

// FenceKey returns the key that holds the greatest token of the given key.
func FenceKey(key string) string {
	// The text between the first { and the next } decides the slot, unless it is empty:
	// redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec.
	_, rest, _ := strings.Cut(key, "{")
	tag, _, tagged := strings.Cut(rest, "}")
	if tagged && tag != "" || strings.Contains(key, "}") { // the latter cannot be put between braces: see Run
		return "holdfast:fence::" + key // never the fence key of another key: that continues with a brace
	}
	return "holdfast:fence:{" + key + "}"
}

// Set sets the key to the value, unless the token is stale.
//
// Errors: *fence.StaleError, *fence.EpochError and *fence.InvalidError: nothing was written;
// Redis' own.
func (g *Guard) Set(ctx context.Context, key, value string, t fence.Token) error {
	_, err := g.Run(ctx, key, t, "return redis.call('SET', KEYS[1], ARGV[1])", nil, []string{value})
	return err
}

// stale is the prefix of the script's error for a stale stamp.
const stale = "HFSTALE "

// prelude checks the stamp. Stamps are padded with zeros, so that they compare as text: Lua numbers
// lose digits above 2^53.
const prelude = `
local newest = redis.call('GET', KEYS[1])
if newest and newest > ARGV[1] then return redis.error_reply('` + stale + `' .. newest) end
redis.call('SET', KEYS[1], ARGV[1])
local KEYS, ARGV = {unpack(KEYS, 2)}, {unpack(ARGV, 2)}
`

// Run runs a script that writes, unless the token is stale. The check and the script are one
// execution, so nothing comes in between. KEYS[1] of the script is the key, and more may follow;
// its ARGV are args. On a Cluster all keys must be in one slot, and a key that contains a brace
// must contain a whole hash tag. An error of the script must not begin with HFSTALE.
//
// It returns what the script returned. The token counts as seen even if the script fails.
//
// Errors: *fence.StaleError, *fence.EpochError and *fence.InvalidError: the script was not run;
// Redis' own.
func (g *Guard) Run(ctx context.Context, key string, t fence.Token, script string, more, args []string) (any, error) {
	return g.RunStamp(ctx, key, fence.Stamp{Epoch: g.epoch, Token: t}, script, more, args)
}

// RunStamp is Run for a token that was presented with its epoch. Another epoch than that of
// the guard is *fence.EpochError, and nothing is sent.
func (g *Guard) RunStamp(ctx context.Context, key string, s fence.Stamp, script string, more, args []string) (any, error) {
	if err := fence.ValidateStamp(key, s, g.epoch); err != nil {
		return nil, err
	}
	if g.eval == nil {
		return nil, &fence.InvalidError{Field: "eval", Value: "nil", Bound: "a function: see Rueidis, and Eval of package goredis"}
	}
	keys := append([]string{FenceKey(key), key}, more...)
	v, err := g.eval(ctx, prelude+script, keys, append([]string{format(s)}, args...))
	if err == nil {
		return v, nil
	}
	if newest, ok := refused(err, s); ok {
		return nil, fence.Refusal(key, s, newest)
	}
	return nil, fmt.Errorf("fenced write of %q: %w", key, err)
}

// refused returns the newest stamp if the prelude refused s with this error. The whole text has to
// be what the prelude writes: the script, which may have written something by then, can fail with
// any other text. The client library, or Eval, may have wrapped the error of the server.
func refused(err error, s fence.Stamp) (fence.Stamp, bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		text, ok := strings.CutPrefix(strings.TrimPrefix(err.Error(), "ERR "), stale)
		if newest, valid := parseStamp(text); ok && valid && text > format(s) {
			return newest, true
		}
	}
	return fence.Stamp{}, false
}

const epochDigits, tokenDigits = 10, 19

// format returns the stamp in the form of the fence key.
func format(s fence.Stamp) string {
	return fmt.Sprintf("%0*d.%0*d", epochDigits, s.Epoch, tokenDigits, s.Token)
}

// parseStamp parses the script's answer. It reports false for text that format cannot have written.
func parseStamp(text string) (fence.Stamp, bool) {
	first, second, _ := strings.Cut(text, ".")
	epoch, err := strconv.ParseUint(first, 10, 32)
	if err != nil {
		return fence.Stamp{}, false
	}
	token, err := strconv.ParseUint(second, 10, 63)
	if err != nil {
		return fence.Stamp{}, false
	}
	s := fence.Stamp{Epoch: uint32(epoch), Token: fence.Token(token)}
	return s, text == format(s)
}
