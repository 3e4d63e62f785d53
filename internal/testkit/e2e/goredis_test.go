package e2e_test

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-io/holdfast/backend/redislock/goredis"
	"github.com/holdfast-io/holdfast/backend/redislock/redisfence"
	"github.com/holdfast-io/holdfast/fence"
)

// redisfence takes a client of go-redis.
func TestFenceOverGoRedis(t *testing.T) {
	t.Parallel()
	s := sharedRedis()
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	guard := redisfence.New(goredis.Eval(client))
	for range 2 { // by the text of the script, and then by its hash
		if err := guard.Set(t.Context(), "stock", "41", 34); err != nil {
			t.Fatal(err)
		}
	}
	err := guard.Set(t.Context(), "stock", "40", 33)
	if stale, ok := errors.AsType[*fence.StaleError](err); !ok || stale.Newest != 34 || s.Do("GET", "stock") != "41" {
		t.Errorf("a late write: %v, stock %v", err, s.Do("GET", "stock"))
	}
	if v, err := guard.Run(t.Context(), "stock", 35, "return false", nil, nil); v != nil || err != nil {
		t.Errorf("a script without an answer: %v, %v", v, err)
	}
}
