//go:build unix

package testserver

import (
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/internal/testkit/launch"
)

// ConsulMinTTL is the least TTL of a session on the servers of this package.
const ConsulMinTTL = launch.ConsulMinTTL

// ConsulServer is a Consul server of its own: alone, or one of a cluster. The methods
// fail the test when they fail; they belong to the test's goroutine.
type ConsulServer struct {
	server

	join []string // where agents join the cluster
}

// ConsulConnections is the number of connections that a Consul server takes from one address
// unless it is configured otherwise.
const ConsulConnections = 200

// StartConsul starts a cluster of n servers; 1 is one that stands alone. They end with the
// test. They take many connections from one address, as if each client had its own address.
func StartConsul(t testing.TB, n int) []*ConsulServer {
	t.Helper()
	return startConsul(t, n, 0, "")
}

// StartConsulTight starts a server that takes no more than ConsulConnections from one
// address.
func StartConsulTight(t testing.TB) *ConsulServer {
	t.Helper()
	return startConsul(t, 1, ConsulConnections, "")[0]
}

// StartConsulACL starts a server where only clients with the token, which is a UUID, may do
// anything. It takes many connections from one address. args are added to its command line.
func StartConsulACL(t testing.TB, token string, args ...string) *ConsulServer {
	t.Helper()
	return startConsul(t, 1, 0, token, args...)[0]
}

func startConsul(t testing.TB, n, connections int, token string, args ...string) []*ConsulServer {
	t.Helper()
	o := launch.ConsulOptions{Options: options(t, args...), Connections: connections, Token: token}
	o.Members, o.Programs = n, tool(t, "consul")
	all, join, err := launch.Consul(o)
	out := make([]*ConsulServer, n)
	for i, s := range launched(t, all, err) {
		out[i] = &ConsulServer{s, join}
	}
	return out
}

// Agent starts a client agent in the cluster of the server, as each machine has one in a
// recommended Consul deployment. It leaves the cluster when its process is terminated.
func (s *ConsulServer) Agent() *ConsulServer {
	s.t.Helper()
	o := options(s.t)
	o.Programs = tool(s.t, "consul")
	agent, err := launch.ConsulAgent(launch.ConsulOptions{Options: o}, s.join)
	return &ConsulServer{started(s.t, agent, err), s.join}
}

// Leads reports whether the server is the leader of its cluster.
func (s *ConsulServer) Leads() bool {
	s.t.Helper()
	ctx, cancel := s.patience()
	defer cancel()
	text, err := launch.ConsulCall(ctx, s.Server, http.MethodGet, "/v1/agent/self", "")
	return err == nil && strings.Contains(text, `"leader":"true"`)
}
