package redlock_test

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock/redlock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
)

// urlOf is the URL of the nodes for a user with the password of the page.
func (c cluster) urlOf(user string) string {
	return strings.Replace(c.url("timeout=30s"), "://", "://"+user+":choose-one@", 1)
}

func TestLeastRights(t *testing.T) {
	t.Parallel()
	commands, err := redlock.Rights()
	if err != nil {
		t.Fatal(err)
	}
	user, words := leasetest.RedisUser(t, "redlock.md")
	c := start(t, append([]string{"--user", user}, words...)...)
	set := func(user string, words ...string) {
		for _, s := range c {
			s.Do(append([]string{"ACL", "SETUSER", user}, words...)...)
		}
	}
	leasetest.RedisRights(t, "redlock.md", commands, set, func(user string) (backend.Backend, error) {
		b, err := redlock.Open(t.Context(), c.urlOf(user), redlock.Config{})
		if err == nil {
			t.Cleanup(func() { _ = b.Close() })
		}
		return b, err
	})
}
