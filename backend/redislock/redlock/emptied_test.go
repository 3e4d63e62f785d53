package redlock_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// All nodes are emptied while a lease is held, and the first that uses them afterwards is a
// process that has not done so before: to it they are new nodes. They have been up for longer
// than max_ttl, and vote only when the lease has ended.
func TestEmptiedBeforeAStranger(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	for _, c := range []struct {
		name  string
		args  []string
		empty func(*testserver.RedisServer)
	}{
		{"flushed, functions too", nil, func(s *testserver.RedisServer) { s.FlushAll(); s.Do("FUNCTION", "FLUSH") }},
		{"deleted", nil, func(s *testserver.RedisServer) {
			for _, key := range s.Do("KEYS", "*").([]any) {
				s.Do("DEL", key.(string))
			}
		}},
		{"a script", scriptsOnly(), func(s *testserver.RedisServer) { s.FlushAll(); s.Do("CONFIG", "RESETSTAT") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			emptiedBeforeAStranger(t, c.args, c.empty)
		})
	}
}

func emptiedBeforeAStranger(t *testing.T, args []string, empty func(*testserver.RedisServer)) {
	t.Helper()
	const params = "max_ttl=10s&timeout=30s"
	c := start(t, args...)
	for _, s := range c {
		leasetest.Eventually(t, "it has been up for longer than max_ttl", func() bool {
			up, _, _ := strings.Cut(after(s.Info("server"), "uptime_in_seconds:"), "\r")
			n, err := strconv.Atoi(up)
			return err == nil && n >= 12
		})
	}
	holder := c.open(t, params)
	g := take(t, holder, ask("n", short))
	if err := holder.Close(); err != nil { // the lease lives on without it
		t.Fatal(err)
	}
	for _, s := range c {
		empty(s)
	}
	stranger := c.open(t, params)
	_, err := stranger.Acquire(within(t, patience), ask("n", short))
	switch {
	case err == nil && time.Since(g.Asked) < g.Left:
		t.Fatal("granted twice")
	case !errors.Is(err, backend.ErrQuarantine) && time.Since(g.Asked) < g.Left:
		t.Errorf("told %v", err)
	}
}

// Five nodes that were just started, and that no client has used before, grant when they have been up for max_ttl. So others
// that have been up for longer grant immediately.
func TestFreshNodes(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	const params, ttl = "max_ttl=10s&timeout=30s", 10 * time.Second
	began := time.Now()
	unused, used := cluster(testserver.RedisNodes(t, nodes)), cluster(testserver.RedisNodes(t, nodes))
	b := used.open(t, params)
	_, err := b.Acquire(within(t, patience), ask("first", short))
	q, ok := errors.AsType[*backend.QuarantineError](err)
	switch {
	case !ok && time.Since(began) > ttl/2: // the machine is so busy that they are not new any more
	case !ok || q.Left > ttl+2*time.Second || q.Parameter != "quarantine=off" || !strings.Contains(q.Reason, "new"):
		t.Errorf("just started: %v", err)
	}
	take(t, b, ask("second", short))
	if took := time.Since(began); took < ttl-time.Second { // uptimes are in whole seconds
		t.Errorf("granted %s after the start", took)
	}
	time.Sleep(time.Until(began.Add(2 * ttl))) // they were started one after the other
	if err := unused.open(t, params).Quarantined(t.Context()); errors.Is(err, backend.ErrQuarantine) {
		t.Errorf("up for longer than max_ttl: %v", err)
	}
}

// A client with the quarantine off, or with a shorter max_ttl, that comes first ends it for no other.
func TestQuarantineOfEachClient(t *testing.T) {
	t.Parallel()
	c := cluster(testserver.RedisNodes(t, nodes))
	take(t, c.open(t, "quarantine=off&max_ttl=10s&timeout=30s"), ask("off", short))
	c.open(t, "max_ttl=10s&timeout=30s")
	_, err := c.open(t, "max_ttl=1h&timeout=30s").Acquire(within(t, patience), ask("one"))
	if q, ok := errors.AsType[*backend.QuarantineError](err); !ok || q.Left < 50*time.Minute {
		t.Errorf("told %v", err)
	}
}
