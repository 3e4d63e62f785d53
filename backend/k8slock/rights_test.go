package k8slock_test

import (
	"strings"
	"testing"

	"github.com/holdfast-io/holdfast/backend"
	"github.com/holdfast-io/holdfast/internal/testkit/leasetest"
	"github.com/holdfast-io/holdfast/internal/testkit/testserver"
)

// The Role that the page gives to paste is enough. Without one of its verbs doctor and the first request that
// needs it name it. The suite runs with this Role, too.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	server := testserver.Kubernetes(t, fairless()...)
	as, settled := leastAccount(t, server)
	leasetest.Suffices(t, as())
	server.Apply("default", leasetest.Rights(t, "kubernetes.md")[1]) // the account, and a program that uses it
	block := leasetest.Rights(t, "kubernetes.md")[0]
	_, list, _ := strings.Cut(block, "verbs: [")
	list, _, _ = strings.Cut(list, "]")
	for verb := range strings.SplitSeq(list, ", ") {
		var others []string
		for other := range strings.SplitSeq(list, ", ") {
			if other != verb {
				others = append(others, other)
			}
		}
		server.Apply("default", strings.Replace(block, list, strings.Join(others, ", "), 1))
		settled(false)
		leasetest.Refuses(t, as(), "to "+verb+" leases")
		server.Apply("default", block)
		settled(true)
	}
}

// fairless are flags of an API server on which an account may send as many requests as an administrator, who has no
// share: an account has a small one, above which it gets 429.
func fairless() []string {
	return []string{"--enable-priority-and-fairness=false", "--max-requests-inflight=0", "--max-mutating-requests-inflight=0"}
}

const leastName = "system:serviceaccount:default:locks"

// leastAccount gives an account the Role that the page gives to paste. It returns what opens the store as this account,
// and what waits until the API server grants, or refuses, something of what the store needs.
func leastAccount(t *testing.T, server *testserver.KubernetesServer) (func() backend.Backend, func(enough bool)) {
	t.Helper()
	server.Apply("default", leasetest.Rights(t, "kubernetes.md")[0])
	as := func() backend.Backend { return leasetest.Opened(t, open(t, server.KubeconfigAs(leastName)), nil) }
	settled := func(enough bool) {
		t.Helper()
		leasetest.Eventually(t, "the API server has read the Role", func() bool {
			found, err := as().(backend.Examiner).Examine(leasetest.Within(t)) //nolint:forcetypeassert // it is one
			return err == nil && (len(found) == 0) == enough
		})
	}
	settled(true)
	return as, settled
}
