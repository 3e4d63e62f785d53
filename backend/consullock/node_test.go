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

// TestDeletedKeyIsALoss: an operator deletes the key of a lease, and another client has the lock.
// The next renewal tells the holder. Leases that it released, or whose break was reported, are not
// reported again.
func TestDeletedKeyIsALoss(t *testing.T) {
	t.Parallel()
	server := consul()
	told := make(chan backend.Loss, 10)
	b, other := closing(t, server.Addr()), closing(t, server.Addr())
	id := session(t, b, func(l backend.Loss) { told <- l })
	kept, held, broken, given := leasetest.Ask("kept", id), leasetest.Ask("n", id), leasetest.Ask("m", id), leasetest.Ask("o", id)
	for _, req := range []backend.AcquireRequest{kept, held, broken, given} {
		leasetest.Take(t, b, req)
	}
	leasetest.Give(t, b, given)
	if _, err := other.Break(leasetest.Within(t), backend.BreakRequest{Name: "m", Reason: "why"}); err != nil {
		t.Fatal(err)
	}
	operator, pool := client(t, server.Addr(), nil)
	defer pool.CloseIdleConnections()
	if _, err := operator.KV().Delete(prefixOf(t)+"/locks/n/"+string(held.Lease), nil); err != nil {
		t.Fatal(err)
	}
	leasetest.Take(t, other, leasetest.Ask("n", session(t, other, nil)))
	for range 2 {
		if res, err := b.Renew(leasetest.Within(t), backend.RenewRequest{Session: id}); err != nil || res.SessionLost {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	want := map[backend.LeaseID]backend.Cause{held.Lease: backend.CauseGone, broken.Lease: backend.CauseBroken}
	for range 2 {
		select {
		case l := <-told:
			if want[l.Lease] != l.Cause {
				t.Errorf("told %+v", l)
			}
			delete(want, l.Lease)
		default:
			t.Fatalf("not told of %+v by the renewals", want)
		}
	}
	if len(told) > 0 {
		t.Errorf("told %+v", <-told)
	}
}
