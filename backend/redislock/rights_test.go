package redislock_test

import (
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

func TestLeastRights(t *testing.T) {
	t.Parallel()
	commands, err := redislock.Rights()
	if err != nil {
		t.Fatal(err)
	}
	user, words := leasetest.RedisUser(t, "redis.md")
	s, cfg := quick(t, append([]string{"--user", user}, words...)...)
	holder := on(t, s, cfg) // whom the users without a right must not disturb
	held := holder.take("held")
	set := func(user string, words ...string) { s.Do(append([]string{"ACL", "SETUSER", user}, words...)...) }
	leasetest.RedisRights(t, "redis.md", commands, set, func(user string) (backend.Backend, error) {
		soon := cfg
		soon.RequestTimeout = 6 * time.Second // a user that may not subscribe gets its answer after it
		b, err := redislock.Open(t.Context(), "redis://"+user+":choose-one@"+s.Addr(), soon)
		if err == nil {
			t.Cleanup(func() { _ = b.Close() })
		}
		return b, err
	})
	holder.heldBy("held", 0, held.Lease)
}
