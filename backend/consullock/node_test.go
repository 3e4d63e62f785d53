package consullock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestAgentLeaves: the agent that the holder uses leaves the cluster, as a restarted agent does.
// The holder cannot be told of anything then: no other client gets the lock before the lease has
// run out.
func TestAgentLeaves(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	server := testserver.StartConsul(t, 1)[0]
	agent := server.Agent()
	b, other := open(t, agent.Addr()), closing(t, server.Addr())
	t.Cleanup(func() { _ = b.Close() })
	id := backend.NewSessionID()
	if err := b.OpenSession(leasetest.Within(t), backend.SessionRequest{ID: id, TTL: ttl}); err != nil {
		t.Fatal(err)
	}
	leasetest.Take(t, b, leasetest.Ask("n", id))
	asked := time.Now()
	if res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id}); err != nil || res.SessionLost {
		t.Fatalf("%+v, %v", res, err)
	}
	agent.Process().Terminate()
	<-agent.Process().Ended()
	leasetest.Take(t, other, leasetest.Ask("n", session(t, other, nil)))
	if took := time.Since(asked); took < ttl {
		t.Errorf("another has the lock %s after the renewal; the TTL is %s", took, ttl)
	}
}

// TestNodeIsDenied: if the token may have sessions on the agent's node alone, a warning says so.
func TestNodeIsDenied(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsulACL(t, management)
	look := func(name, rules string, want bool) {
		secret := newToken(t, server.Addr(), management, name, rules)
		b, err := consullock.Open(t.Context(), "consul://:"+secret+"@"+server.Addr(), consullock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		closed(t, b)
		leasetest.Take(t, b, leasetest.Ask("n"+name, session(t, b, nil)))
		found, err := b.Examine(context.WithoutCancel(t.Context()))
		if err != nil || slices.ContainsFunc(found, func(f backend.Finding) bool { return strings.Contains(f.Text, "agent's node") }) != want {
			t.Errorf("%s: %v, %v", name, found, err)
		}
	}
	const keys = `key_prefix "holdfast/" { policy = "write" } operator = "read" `
	look("few", keys+`session_prefix "n" { policy = "write" }`, true)
	look("enough", keys+`session "holdfast-sessions" { policy = "write" } node "holdfast-sessions" { policy = "write" }`, false)
	look("once-it-is-there", keys+`session "holdfast-sessions" { policy = "write" }`, false)
}

func TestDeletedKeyIsALoss(t *testing.T) {
	t.Parallel()
	server := consul()
	operator := client(t, server.Addr())
	leasetest.DeletedIsALoss(t, closing(t, server.Addr()), closing(t, server.Addr()), func(req backend.AcquireRequest) {
		if _, err := operator.KV().Delete(prefixOf(t)+"/locks/"+req.Name+"/"+string(req.Lease), nil); err != nil {
			t.Fatal(err)
		}
	})
}
