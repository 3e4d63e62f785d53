package consullock_test

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// management is the token of the administrator, and is a secret nowhere.
const management = "5b5bd0a1-3f4c-4b4e-9a0e-4bd4d3a2f002"

// withToken opens a backend with a token, and with the default prefix.
func withToken(ctx context.Context, server *testserver.ConsulServer, secret string) (*consullock.Backend, error) {
	return consullock.Open(ctx, "consul://:"+secret+"@"+server.Addr()+"?min_ttl="+testserver.ConsulMinTTL.String(), consullock.Config{})
}

// Without one of the rules of the policy that the page gives to paste doctor and the first request that needs it name it.
// The suite runs with the whole policy, too.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	server := testserver.StartConsulACL(t, management)
	block := leasetest.Rights(t, "consul.md")[0]
	with := func(name, rules string) *consullock.Backend {
		b, err := withToken(t.Context(), server, newToken(t, server.Addr(), management, name, rules))
		return leasetest.Opened(t, b, err)
	}
	n := 0
	for rule := range strings.Lines(block) {
		n++
		b := with("without-"+strings.Fields(rule)[0], strings.Replace(block, rule, "", 1))
		leasetest.Refuses(t, b, strings.TrimSpace(rule))
	}
	if n != 3 {
		t.Errorf("%d rules", n)
	}
	leasetest.Suffices(t, with("all", block))
}
