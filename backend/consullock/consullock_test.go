package consullock_test

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/backend/backendtest"
	"github.com/holdfast-io/holdfast/backend/consullock"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// consul is the server of all tests that need none for themselves.
var consul = testserver.Shared(func(tb testing.TB) *testserver.ConsulServer {
	tb.Helper()
	return testserver.StartConsul(tb, 1)[0]
})

func TestMain(m *testing.M) { testserver.Main(m) }

// prefixOf is where a test has its keys.
func prefixOf(t *testing.T) string {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	return name
}

// open returns a backend on the server, as another process would have one.
func open(t *testing.T, addr string) *consullock.Backend {
	t.Helper()
	b, err := consullock.Open(t.Context(), "consul://"+addr+"/"+prefixOf(t)+"?min_ttl="+testserver.ConsulMinTTL.String(), consullock.Config{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return b
}

// TestConformance runs the suite with a token that has the policy that the page gives to paste.
func TestConformance(t *testing.T) {
	t.Parallel()
	server, disk := testserver.WithSlowDisk(t, testserver.StartConsulACL(t, management))
	secret := newToken(t, server.Addr(), management, "all", leasetest.Rights(t, "consul.md")[0])
	backendtest.Run(t, backendtest.Harness{
		Open: func(t backendtest.T) backend.Backend {
			b, err := withToken(t.Context(), server, secret)
			if err != nil {
				t.Fatalf("Open: %v", err)
			}
			return b
		},
		Restart:  func(backendtest.T) { server.Restart() },
		SlowDisk: func(backendtest.T) func() { disk.Slow(testserver.SlowSync); return disk.Fast },
		Holders:  leasetest.Holders(200), // each acquire reads the queue
	})
}
