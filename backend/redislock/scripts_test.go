package redislock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/redislock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// B18: a server that forbids scripts, as some managed ones do, is refused when the backend is
// opened. There is no weaker way that first reads and then takes.
func TestScriptsForbidden(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	s.Do("ACL", "SETUSER", "noscripts", "on", ">pw", "~*", "&*", "+@all", "-eval", "-evalsha", "-fcall")
	s.ResetStats()
	b, err := redislock.Open(t.Context(), "redis://noscripts:pw@"+s.Addr(), redislock.Config{})
	if err == nil {
		_ = b.Close()
	}
	if !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("opened without scripts: %v", err)
	}
	for _, command := range []string{"set", "setnx", "watch", "multi"} {
		if n := s.CommandStats()[command]; n > 0 {
			t.Errorf("it sent %s", command)
		}
	}
}

// B15: WAIT covers the writes of its own connection only, and a pool gives it another one.
// Nothing here uses it, and nothing is promised of replicas.
func TestReplicasAreNotWaitedFor(t *testing.T) {
	leasetest.Slow(t)
	t.Parallel()
	s := testserver.Redis(t)
	host, port, _ := strings.Cut(s.Addr(), ":")
	testserver.Redis(t, "--replicaof", host+" "+port)
	b := open(t, s, redislock.Config{Quarantine: redislock.NoQuarantine})
	s.Do("SET", "somebody", "else")
	s.Do("WAIT", "1", "20000") // the replica is there
	s.ResetStats()
	id := session(t, b, time.Minute)
	for range 3 {
		req := backend.AcquireRequest{Name: "n", Lease: backend.NewLeaseID(), Session: id, Wait: true}
		if _, err := b.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if err := b.Release(t.Context(), backend.ReleaseRequest{Name: "n", Lease: req.Lease, Session: id}); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.CommandStats()["wait"]; n > 0 {
		t.Errorf("WAIT was sent %d times", n)
	}
	found, err := b.Examine(t.Context())
	if err != nil || len(found) != 1 || !strings.Contains(found[0].Text, "replicas follow, and a grant waits for 0") {
		t.Errorf("the replica is not warned of: %v, %v", found, err)
	}
}
