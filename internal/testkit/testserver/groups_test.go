//go:build unix

package testserver_test

import (
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

func TestRedisCluster(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3)
	const key = "{hf0}:m"
	from := c.Owner(key)
	from.Do("SET", key, "1")
	to := c.Masters()[0]
	if to == from {
		to = c.Masters()[1]
	}
	c.BeginMove(c.Slot(key), from, to)
	c.EndMove(c.Slot(key), from, to)
	if got := to.Do("GET", key); got != "1" || c.Owner(key) != to {
		t.Errorf("the key is %v after its slot was moved", got)
	}
}

func TestRedisSentinels(t *testing.T) {
	t.Parallel()
	g := testserver.StartRedisSentinels(t)
	g.Master.Do("SET", "k", "1")
	if n := g.Master.Do("WAIT", "1", "10000"); n != int64(1) {
		t.Fatalf("%v replicas", n)
	}
	g.FailOver()
	if got := g.Replica.Do("GET", "k"); got != "1" {
		t.Errorf("the replica has %v", got)
	}
}
