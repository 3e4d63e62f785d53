package consullock_test

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The policy that the page gives to paste is enough for the whole suite. Without one of its rules doctor
// and the first request that needs it name it.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	const management = "5b5bd0a1-3f4c-4b4e-9a0e-4bd4d3a2f002"
	server := testserver.StartConsulACL(t, management)
	block := leasetest.Rights(t, "consul.md")[0]
	with := func(name, rules string) func(ctx context.Context) (*consullock.Backend, error) {
		secret := newToken(t, server.Addr(), management, name, rules)
		return func(ctx context.Context) (*consullock.Backend, error) {
			return consullock.Open(ctx, "consul://:"+secret+"@"+server.Addr()+"?min_ttl="+testserver.ConsulMinTTL.String(), consullock.Config{})
		}
	}
	as := func(open func(ctx context.Context) (*consullock.Backend, error)) *consullock.Backend {
		b, err := open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return closed(t, b)
	}
	n := 0
	for rule := range strings.Lines(block) {
		n++
		b := as(with("without-"+strings.Fields(rule)[0], strings.Replace(block, rule, "", 1)))
		leasetest.Refuses(t, b, strings.TrimSpace(rule))
	}
	if n != 3 {
		t.Errorf("%d rules", n)
	}
	open := with("all", block)
	leasetest.Suffices(t, as(open))
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := open(t.Context())
			if err != nil {
				t.Fatalf("Open: %v", err)
			}
			return b
		},
		Restart:    func(backendtest.T) { server.Restart() },
		NoSlowDisk: "TestConformance has the same server on one",
		Holders:    leasetest.Holders(200), // each acquire reads the queue
	})
}
