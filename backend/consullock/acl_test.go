package consullock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// TestRights: a missing right is reported: it is neither a held lock nor a lost lease, and no request is retried until the
// context ends. No error contains the token.
func TestRights(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsulACL(t, management)
	with := func(name, rules string) (*consullock.Backend, backend.SessionID, string) {
		secret := newToken(t, server.Addr(), management, name, `session_prefix "" { policy = "write" } `+rules)
		b, err := consullock.Open(t.Context(), "consul://:"+secret+"@"+server.Addr()+"/team/locks", consullock.Config{})
		leasetest.Opened(t, b, err)
		return b, session(t, b, nil), secret
	}
	const everything = `key_prefix "team/locks/" { policy = "write" }`
	all, id, _ := with("all", everything)
	held := leasetest.Ask("n", id)
	leasetest.Take(t, all, held)

	// Locks may only be read, except for the notices.
	reader, theirs, secret := with("reader", `key_prefix "team/locks/" { policy = "read" } key_prefix "team/locks/notices/" { policy = "write" }`)
	for what, call := range map[string]func(ctx context.Context) error{
		"acquire a lock that is free": func(ctx context.Context) error {
			_, err := reader.Acquire(ctx, leasetest.Ask("free", theirs))
			return err
		},
		"release": func(ctx context.Context) error {
			return reader.Release(ctx, backend.ReleaseRequest{Name: "n", Lease: held.Lease, Session: theirs})
		},
		"abandon": func(ctx context.Context) error {
			return reader.Release(ctx, backend.ReleaseRequest{Name: "n", Lease: backend.NewLeaseID(), Session: theirs, Abandon: true})
		},
		"break": func(ctx context.Context) error {
			_, err := reader.Break(ctx, backend.BreakRequest{Name: "n"})
			return err
		},
	} {
		ctx := leasetest.Within(t)
		err := call(ctx)
		away, _ := errors.AsType[*backend.UnavailableError](err)
		if ctx.Err() != nil || away == nil || away.MayHold || errors.Is(err, backend.ErrLost) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s without the right to: %v", what, err)
		}
	}
	if info, err := all.Inspect(leasetest.Within(t), "n"); err != nil || len(info.Holders) != 1 || info.Holders[0].Lease != held.Lease {
		t.Errorf("who had the lock has it: %+v, %v", info, err)
	}

	// A token that does not exist any more lacks no right.
	gone, id, secret := with("gone", everything)
	deleteToken(t, server.Addr(), management, secret)
	for what, call := range map[string]func(ctx context.Context) error{
		"acquire": func(ctx context.Context) error {
			_, err := gone.Acquire(ctx, leasetest.Ask("free", id))
			return err
		},
		"renew": func(ctx context.Context) error {
			_, err := gone.Renew(ctx, backend.RenewRequest{Session: id})
			return err
		},
		"open a session": func(ctx context.Context) error {
			return gone.OpenSession(ctx, backend.SessionRequest{ID: backend.NewSessionID(), TTL: time.Minute})
		},
		"examine": func(ctx context.Context) error {
			_, err := gone.Examine(ctx)
			return err
		},
	} {
		err := call(leasetest.Within(t))
		away, _ := errors.AsType[*backend.UnavailableError](err)
		if !errors.Is(err, backend.ErrRefused) || away == nil || away.MayHold || strings.Contains(err.Error(), "the right") {
			t.Errorf("%s with a token that was deleted: %v", what, err)
		}
	}
}

// deleteToken deletes a token that newToken has made.
func deleteToken(t *testing.T, addr, management, secret string) {
	t.Helper()
	c := client(t, addr)
	token, _, err := c.ACL().TokenReadSelf(&api.QueryOptions{Token: secret})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ACL().TokenDelete(token.AccessorID, &api.WriteOptions{Token: management}); err != nil {
		t.Fatal(err)
	}
}

// newToken makes a token with the rules.
func newToken(t *testing.T, addr, management, name, rules string) string {
	t.Helper()
	c := client(t, addr)
	opts := &api.WriteOptions{Token: management}
	policy, _, err := c.ACL().PolicyCreate(&api.ACLPolicy{Name: name, Rules: rules}, opts)
	if err != nil {
		t.Fatal(err)
	}
	token, _, err := c.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLTokenPolicyLink{{ID: policy.ID}}}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return token.SecretID
}
